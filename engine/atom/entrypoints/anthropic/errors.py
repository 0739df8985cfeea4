"""Errors in Anthropic's shape, for clients of its API: {"type": "error", "error": {type, message},
"request_id"}.

`AnthropicErrors` wraps every layer that can refuse a request, and converts errors in OpenAI's
shape: a missing key, too large a body, an unknown path. A stream that has begun reports its error
as an event (message_events.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atom.entrypoints.http.errors import ErrorResponse, describe
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.http.response_headers import header_of
from atom.entrypoints.request_fields.field_check import UNSUPPORTED

PATH = "/v1/messages"
VERSION_HEADER = "anthropic-version"
_TYPES: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
)
_DEAD = "engine_dead"
# Its clients read this error and then send the whole conversation.
_NO_THREADS = "thread_unsupported_request"
_ERROR = msgspec.json.Decoder(ErrorResponse)


class KnownError(msgspec.Struct, frozen=True):
    """Name an error that clients recover from automatically."""

    error_code: Annotated[str, Meta(description="A word that a client can look at.")]


class ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    """Names an error. message: with the remedy."""

    type: Annotated[str, Meta(description="The kind of error.")]
    message: Annotated[str, Meta(description="What is wrong, where, and the remedy.")]
    details: Annotated[
        KnownError | None, Meta(description="Of an error that clients can go on from.")
    ] = None


class AnthropicError(msgspec.Struct, frozen=True):
    """Represent an error answer. request_id: of the answer's header."""

    error: Annotated[ErrorDetail, Meta(description="What went wrong.")]
    request_id: Annotated[str | None, Meta(description="As in the answer's headers.")]
    type: Annotated[Literal["error"], Meta(description="Always `error`.")] = "error"


def speaks_anthropic(scope: Scope) -> bool:
    """Return whether a request is of Anthropic's API: by its path, or the version it names."""
    path: str = scope["path"]
    if path == PATH or path.startswith(f"{PATH}/"):
        return True
    return header_of(scope, VERSION_HEADER) is not None


def error_of(error: Exception, request_id: str | None = None) -> tuple[int, AnthropicError]:
    """Return the HTTP status and body for an exception."""
    status, body = describe(error)
    return status, _reshaped(status, body, request_id)


def _reshaped(status: int, body: ErrorResponse, request_id: str | None) -> AnthropicError:
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    if body.error.code == _DEAD:  # asking again does not help
        kind = "api_error"
    threads = (body.error.param, body.error.code) == ("thread", UNSUPPORTED)
    details = KnownError(_NO_THREADS) if threads else None
    return AnthropicError(ErrorDetail(kind, body.error.message, details), request_id)


class AnthropicErrors:
    """Middleware. Answers of Anthropic's API name their request in its own header, too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and speaks_anthropic(scope):
            send = _Reshaping(scope, send).send
        await self._app(scope, receive, send)


class _Reshaping:
    """Passes the answer to one request on. An error is held until all of it is there."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._state: Mapping[str, Any] = scope.get("state", {})
        self._send = send
        self._start: Message | None = None  # of an error
        self._body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            request_id = str(self._state.get("request_id", "")).encode()
            message["headers"] = [*message.get("headers", ()), (b"request-id", request_id)]
            if message["status"] >= 400:
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
            body = to_json(_reshaped(start["status"], found, self._state.get("request_id")))
        kept = [each for each in start["headers"] if each[0].lower() != b"content-length"]
        start["headers"] = [*kept, (b"content-length", str(len(body)).encode())]
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})
