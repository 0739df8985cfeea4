"""Errors in Anthropic's shape, for clients of its API: {"type": "error", "error": {type, message},
"request_id"}.

`anthropic_send` is around every layer that can refuse a request, and converts errors in OpenAI's
shape: a missing key, too large a body, an unknown path. A stream that has begun reports its error
as an event (message_events.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.types import Message, Scope, Send

from atom.entrypoints.http.errors import ErrorResponse, ReshapedErrors, describe
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


def anthropic_send(scope: Scope, send: Send) -> Send | None:
    """Return the `send` of an answer of Anthropic's API, which adds the request's id in its own
    header; None for other requests."""
    if not speaks_anthropic(scope):
        return None
    state: Mapping[str, Any] = scope.get("state", {})

    def reshape(status: int, error: ErrorResponse) -> AnthropicError:
        return _reshaped(status, error, state.get("request_id"))

    return ReshapedErrors(_naming_request(state, send), reshape).send


def _naming_request(state: Mapping[str, Any], send: Send) -> Send:
    """Add the request's id in Anthropic's own header."""

    async def send_named(message: Message) -> None:
        if message["type"] == "http.response.start":
            request_id = str(state.get("request_id", "")).encode()
            message["headers"] = [*message.get("headers", ()), (b"request-id", request_id)]
        await send(message)

    return send_named
