"""/continue_request: another replica of the model hands over an open answer, and relays the rest.

Between servers of one version, in msgpack; it gives nothing that /inference/v1/generate does not,
and needs the same key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from atom.entrypoints.handover.token_frames import TokenFrames
from atom.entrypoints.http.sse import EventStream
from atom.entrypoints.openai.body import read_bytes
from atom.entrypoints.openai.state import ServerState
from atom.errors import RequestError
from atom.model_engine.front.handover.handed_request import HandedRequest

_DECODER = msgspec.msgpack.Decoder(HandedRequest)


def continue_handler(state: ServerState) -> Callable[[Request], Awaitable[Response]]:
    async def continue_request(http: Request) -> Response:
        with state.bodies.share() as share:
            data = await read_bytes(http, share)
            try:
                handed = _DECODER.decode(data)
            except (msgspec.MsgspecError, RequestError) as error:
                raise RequestError(f"not a request of this version's: {error}") from error
        group = await state.started_engine().continue_request(handed)
        return TokenStream(TokenFrames(group))

    return continue_request


class TokenStream(EventStream):
    """Frames of tokens instead of events."""

    content_type = b"application/x-msgpack"
