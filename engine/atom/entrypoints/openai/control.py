"""Routes that change the server for everybody; access.CONTROL_PATHS names them, and keeps them shut
unless the server has an API key."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.openai.openapi import answers_of
from atom.entrypoints.openai.responses import Empty, Traces
from atom.entrypoints.openai.state import ServerState
from atom.errors import AtomError, EngineDeadError, RequestError


def control_routes(state: ServerState) -> APIRouter:
    router = APIRouter(tags=["control"])

    @router.post(
        "/reset_prefix_cache",
        summary="Forget every cached prompt; running ones go on",
        description="Running requests go on with what they hold; later ones compute their prompts.",
        responses=answers_of(Empty, example={}),
    )
    async def reset_prefix_cache() -> Response:
        await state.serving_engine(None).call_utility("reset_prefix_cache")
        return Response(to_json(Empty()), media_type="application/json")

    @router.post(
        "/start_profile",
        summary="Begin a torch profiler trace of every engine process",
        description="Where the server was started with --torch-profiler-dir.",
        responses=answers_of(Empty, example={}),
    )
    async def start_profile() -> Response:
        await _profile(state, "start_profile")
        return Response(to_json(Empty()), media_type="application/json")

    @router.post(
        "/stop_profile",
        summary="End the traces; where they were written",
        description="The answer names the files, one for each rank.",
        responses=answers_of(Traces, example={"traces": ["/traces/rank0.json"]}),
    )
    async def stop_profile() -> Response:
        paths = await _profile(state, "stop_profile")
        return Response(to_json(Traces(paths)), media_type="application/json")

    return router


async def _profile(state: ServerState, method: str) -> list[str]:
    engine = state.serving_engine(None)
    if engine.config.torch_profiler_dir is None:
        raise RequestError(
            "profiling is off in this server; start it with --torch-profiler-dir DIR", status=403
        )
    try:
        return await engine.call_utility(method)
    except EngineDeadError:
        raise
    except AtomError as error:  # already begun, not begun, no room on the disk
        raise RequestError(str(error), status=409) from None
