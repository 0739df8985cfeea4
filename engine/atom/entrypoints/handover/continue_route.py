"""/continue_request: another server of the model has an answer computed here, from its beginning or
from any token on, and relays it; GET describes this server to it.

Between servers of one version, in msgpack. The route exists only if the server has a secret
(--handover-secret-file), and access.py admits only callers with the same one: the request's client
and priority are taken from them alone, within the bounds of the public routes.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from atom.entrypoints.handover.token_frames import (
    PATH,
    PROTOCOL,
    PROTOCOL_HEADER,
    SERVER_HEADER,
    WEIGHTS_HEADER,
    TokenFrames,
)
from atom.entrypoints.http.body_budget import MAX_BODY_BYTES
from atom.entrypoints.http.sse import EventStream, Frames
from atom.entrypoints.openai.body import read_bytes
from atom.entrypoints.openai.state import ServerState
from atom.errors import RequestError
from atom.model_engine.front.engine_lifecycle import EngineState
from atom.model_engine.front.handover.handed_request import HandedRequest
from atom.model_engine.front.handover.worker_core import WorkerFacts
from atom.model_engine.wire.request_images import MOST_IMAGE_BYTES

_MEDIA_TYPE = "application/x-msgpack"
_DECODER = msgspec.msgpack.Decoder(HandedRequest)


def continue_handler(state: ServerState) -> Callable[[Request], Awaitable[Response]]:
    async def continue_request(http: Request) -> Response:
        _check_protocol(http)
        pixels_bytes = MOST_IMAGE_BYTES if state.reads_images else 0
        with state.bodies.share(most_bytes=MAX_BODY_BYTES + pixels_bytes) as share:
            data = await read_bytes(http, share)
            try:
                handed = _DECODER.decode(data)
            except (msgspec.MsgspecError, RequestError, RecursionError) as error:
                raise RequestError(f"not a request of this version's: {error}") from error
        engine = state.started_engine()
        group, version = await engine.continue_request(handed)
        return TokenStream(TokenFrames(group), version)

    return continue_request


def continue_routes(state: ServerState) -> APIRouter:
    router = APIRouter()

    @router.get(PATH, include_in_schema=False)
    async def worker_facts(http: Request) -> Response:
        _check_protocol(http)
        engine, status = state.started_engine(), state.status
        if status.state is not EngineState.READY and not state.holds_requests:
            raise RequestError(f"the server is {status.state}: {status.reason}", status=503)
        assert status.report is not None
        transfer = engine.config.cache.kv_transfer
        role = "" if transfer is None else transfer.role.value
        facts = WorkerFacts(status.report, engine.pauses.weights_version, role)
        return Response(msgspec.msgpack.encode(facts), media_type=_MEDIA_TYPE)

    return router


def _check_protocol(http: Request) -> None:
    """Raises `RequestError` (409) for a server that speaks of requests in another way."""
    spoken = http.headers.get(PROTOCOL_HEADER, str(PROTOCOL))
    if spoken != str(PROTOCOL):
        raise RequestError(
            f"{PROTOCOL_HEADER} is {spoken}, and this server speaks {PROTOCOL}: let both "
            f"servers be of one version",
            status=409,
        )


class TokenStream(EventStream):
    """Frames of tokens instead of events. weights_version: by which they are computed."""

    content_type = _MEDIA_TYPE.encode()

    def __init__(self, frames: Frames, weights_version: str) -> None:
        super().__init__(frames)
        self.more_headers = [
            (WEIGHTS_HEADER.encode(), weights_version.encode("latin-1")),
            (SERVER_HEADER.encode(), socket.gethostname().encode("latin-1", "replace")),
        ]
