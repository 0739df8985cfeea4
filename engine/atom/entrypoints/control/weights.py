"""/update_weights: the model's weights are replaced by those of another checkpoint while it serves.

A control route: access.CONTROL_PATHS names it. Shut unless the server was started with
--enable-sleep-mode, as all that may pause it for everybody."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter
from msgspec import Meta
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from atom.config_values import OpenRequestsMode
from atom.entrypoints.control.control_body import read_control_body
from atom.entrypoints.control.control_routes import pausing_engine
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.openai.openapi import Beside, answers_of, body_of
from atom.entrypoints.openai.state import ServerState

_VERSION = r"^[!-~]{1,128}$"  # of characters that go into any header or label


class UpdateWeightsRequest(BaseModel):
    """A body of POST /update_weights."""

    model_config = ConfigDict(extra="forbid")

    model_path: Annotated[
        str,
        Field(description="A checkpoint of the same shape: a folder of the server's, or a hub id."),
    ]
    weight_version: Annotated[
        str | None,
        Field(
            pattern=_VERSION,
            description="By which the weights are named from then on; without it a digest of their "
            "files.",
        ),
    ] = None
    mode: Annotated[
        OpenRequestsMode,
        Field(
            description="What becomes of open requests: they end first (wait), end with 503 "
            "(abort), or go on with the new weights (keep)."
        ),
    ] = OpenRequestsMode.WAIT


class UpdatedWeights(msgspec.Struct, frozen=True):
    """The answer of /update_weights."""

    weight_version: Annotated[
        str, Meta(description="Of the weights that requests are computed by now.")
    ]
    success: Annotated[bool, Meta(description="Always true; an error has another status.")] = True


WEIGHTS_DOCUMENTED = Beside((UpdateWeightsRequest,), (UpdatedWeights,))


def weights_routes(state: ServerState) -> APIRouter:
    router = APIRouter(tags=["control"])

    @router.post(
        "/update_weights",
        summary="Serve by the weights of another checkpoint of the same shape",
        description="Where the server was started with --enable-sleep-mode. Answered once the next "
        "request is computed by them; requests that come meanwhile wait. One that does not fit is "
        "refused, and nothing has changed.",
        openapi_extra=body_of(UpdateWeightsRequest, {"model_path": "/models/step-2000"}),
        responses=answers_of(UpdatedWeights, example={"weight_version": "fp_0123456789abcdef"}),
    )
    async def update_weights(http: Request) -> Response:
        engine = pausing_engine(state)
        asked = await read_control_body(state, http, UpdateWeightsRequest)
        started = (str(engine.config.model.path), state.loadable.model)
        state.loadable.weights.check(asked.model_path, started, "model_path")
        version = await engine.pauses.update_weights(
            asked.model_path, version=asked.weight_version, mode=asked.mode
        )
        return Response(to_json(UpdatedWeights(version)), media_type="application/json")

    return router
