"""/v1/load_lora_adapter and /v1/unload_lora_adapter, by vLLM's names: adapters come and go while
requests run. Shut unless the server was started with --allow-runtime-lora-updating."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from atom.entrypoints.control.control_body import read_control_body
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.openai.openapi import Beside, answers_of, body_of
from atom.entrypoints.openai.responses import Empty
from atom.entrypoints.openai.state import ServerState
from atom.errors import RequestError
from atom.lora_config import LoraModule


class _Named(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    lora_name: Annotated[str, Field(description="The name by which requests name the adapter.")]


class LoadLoraAdapterRequest(_Named):
    """A body of POST /v1/load_lora_adapter."""

    lora_path: Annotated[str, Field(description="A folder of the server's, or a hub id.")]
    load_inplace: Annotated[
        bool,
        Field(
            description="Takes the place of an adapter with this name, once it is read. Requests "
            "that have begun go on with the old one."
        ),
    ] = False


class UnloadLoraAdapterRequest(_Named):
    """A body of POST /v1/unload_lora_adapter."""


LORA_DOCUMENTED = Beside((LoadLoraAdapterRequest, UnloadLoraAdapterRequest))


def lora_routes(state: ServerState) -> APIRouter:
    router = APIRouter(tags=["adapters"])

    @router.post(
        "/v1/load_lora_adapter",
        summary="Serve another LoRA adapter",
        description="Answered once requests may name it; streams go on meanwhile.",
        openapi_extra=body_of(
            LoadLoraAdapterRequest, {"lora_name": "sql", "lora_path": "/adapters/sql"}
        ),
        responses=answers_of(Empty, example={}),
    )
    async def load_lora_adapter(http: Request) -> Response:
        asked = await read_control_body(state, http, LoadLoraAdapterRequest)
        engine = state.serving_engine(None)
        _check_not_followed(state)
        if asked.lora_name in state.served_names(engine):
            raise RequestError(
                f"lora_name: {asked.lora_name} is the model's own name", param="lora_name"
            )
        module = LoraModule(name=asked.lora_name, path=asked.lora_path)
        lora = engine.config.lora
        started = () if lora is None else tuple(each.path for each in lora.modules)
        state.loadable.loras.check(asked.lora_path, started, "lora_path")
        with state.server_names.coming(asked.lora_name, state.all_names):
            await engine.lora_changes.load(module, in_place=asked.load_inplace)
        return Response(to_json(Empty()), media_type="application/json")

    @router.post(
        "/v1/unload_lora_adapter",
        summary="Serve a LoRA adapter no more",
        description="Requests that have begun go on with it.",
        openapi_extra=body_of(UnloadLoraAdapterRequest, {"lora_name": "sql"}),
        responses=answers_of(Empty, example={}),
    )
    async def unload_lora_adapter(http: Request) -> Response:
        asked = await read_control_body(state, http, UnloadLoraAdapterRequest)
        engine = state.serving_engine(None)
        _check_not_followed(state)
        await engine.lora_changes.unload(asked.lora_name)
        return Response(to_json(Empty()), media_type="application/json")

    return router


def _check_not_followed(state: ServerState) -> None:
    if state.followed_loras is not None:
        raise RequestError(
            "this server's adapters are those of --lora-modules-file; change the file", status=403
        )
