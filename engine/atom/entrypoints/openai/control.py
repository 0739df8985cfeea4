"""Routes that change the server for everybody; access.CONTROL_PATHS names them, and keeps them shut
unless the server has an API key."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from atom.entrypoints.openai.state import ServerState


def control_routes(state: ServerState) -> APIRouter:
    router = APIRouter(tags=["control"])

    @router.post("/reset_prefix_cache", summary="Forget every cached prompt; running ones go on")
    async def reset_prefix_cache() -> Response:
        await state.serving_engine(None).call_utility("reset_prefix_cache")
        return Response(b"{}", media_type="application/json")

    return router
