"""Every error a client can see, in OpenAI's shape: {"error": {message, type, param, code}}.

One table from our exceptions to status and body; any other exception is a fault of ours and exposes
no detail. Used by the app's exception handlers and inside event streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atom.entrypoints.http.json_body import to_json
from atom.errors import AtomError, EngineDeadError, RequestError

RETRY_AFTER_SECONDS = 5
_LONGEST_QUOTE = 200  # characters
LEAST_ERROR = 400  # the first HTTP status of errors

_TYPE_OF_STATUS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ErrorBody(msgspec.Struct, frozen=True):
    message: Annotated[str, Meta(description="What is wrong, where, and what to do.")]
    type: Annotated[str, Meta(description="The kind of error.")]
    param: Annotated[str | None, Meta(description="The field that is meant, if one is.")]
    code: Annotated[str | int | None, Meta(description="A word that a program can look at.")]


class ErrorResponse(msgspec.Struct, frozen=True):
    error: Annotated[ErrorBody, Meta(description="Why there is no answer.")]


_ERROR = msgspec.json.Decoder(ErrorResponse)
Reshape = Callable[[int, ErrorResponse], object]
# How an API sends its answers to a request, None for a request of another API.
Dialect = Callable[[Scope, Send], Send | None]


def shortened(text: str) -> str:
    """Shorten a client's text for a message; short texts are unchanged."""
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}..."


def describe(error: Exception) -> tuple[int, ErrorResponse]:
    """Return the HTTP status and body for an exception of a handler or a stream."""
    if isinstance(error, RequestError):
        return error.status, _body(error.status, str(error), error.param, error.code)
    if isinstance(error, EngineDeadError):
        return 503, _body(503, str(error), code="engine_dead")
    if isinstance(error, AtomError):
        return 500, _body(500, str(error))
    return 500, _body(500, "internal error of the server; its log has the details")


def error_response(
    status: int, body: ErrorResponse, retry_after_seconds: int | None = None
) -> Response:
    headers = {}
    if status in (429, 503):
        headers["retry-after"] = str(retry_after_seconds or RETRY_AFTER_SECONDS)
    if status == 504:
        # OpenAI's clients send whatever is 5xx again by themselves; it would run out of time again.
        headers["x-should-retry"] = "false"
    return Response(to_json(body), status, headers, media_type="application/json")


def response_for(error: Exception) -> Response:
    after = error.retry_after_seconds if isinstance(error, RequestError) else None
    return error_response(*describe(error), after)


def http_error(status: int, message: str, code: str | None = None) -> Response:
    """Return an error of the HTTP layer itself: no such route, wrong method, no key."""
    return error_response(status, _body(status, message, code=code))


def _body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> ErrorResponse:
    kind = _TYPE_OF_STATUS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return ErrorResponse(ErrorBody(message, kind, param, code))


class ReshapedErrors:
    """Answers in another API's shape of errors. An error is held until all of it is there; every
    other message passes."""

    def __init__(self, send: Send, reshape: Reshape) -> None:
        """reshape: the HTTP status and an error in OpenAI's shape to one in the other."""
        self._send = send
        self._reshape = reshape
        self._start: Message | None = None  # of an error
        self._body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if message["status"] >= LEAST_ERROR:
                self._start = message
                return
        elif self._start is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_error(self._start)
            return
        await self._send(message)

    async def _send_error(self, start: Message) -> None:
        body = self._body
        try:
            found = _ERROR.decode(body)
        except msgspec.MsgspecError:
            pass  # no error of ours, such as an empty body for a client that has left
        else:
            body = to_json(self._reshape(start["status"], found))
        kept = [each for each in start["headers"] if each[0].lower() != b"content-length"]
        start["headers"] = [*kept, (b"content-length", str(len(body)).encode())]
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})


class DialectErrors:
    """Middleware. Answers in the shape of errors of the API that a request speaks."""

    def __init__(self, app: ASGIApp, dialects: Sequence[Dialect]) -> None:
        """dialects: of the APIs besides OpenAI's; the first one that knows a request sends."""
        self._app = app
        self._dialects = dialects

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            known = (dialect(scope, send) for dialect in self._dialects)
            send = next((each for each in known if each is not None), send)
        await self._app(scope, receive, send)
