"""Every error a client can see, in OpenAI's shape: {"error": {message, type, param, code}}.

One table from our exceptions to status and body; any other exception is a fault of ours and exposes
no detail. Used by the app's exception handlers and inside event streams.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from atom.entrypoints.http.json_body import to_json
from atom.errors import AtomError, EngineDeadError, RequestError

RETRY_AFTER_SECONDS = 5
_LONGEST_QUOTE = 200  # characters

_TYPE_OF_STATUS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ErrorBody(msgspec.Struct, frozen=True):
    message: Annotated[str, Meta(description="What is wrong, where, and what to do.")]
    type: Annotated[str, Meta(description="The kind of error.")]
    param: Annotated[str | None, Meta(description="The field that is meant, if one is.")]
    code: Annotated[str | int | None, Meta(description="A word that a program can look at.")]


class ErrorResponse(msgspec.Struct, frozen=True):
    error: Annotated[ErrorBody, Meta(description="Why there is no answer.")]


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


def error_response(status: int, body: ErrorResponse) -> Response:
    headers = {}
    if status in (429, 503):
        headers["retry-after"] = str(RETRY_AFTER_SECONDS)
    if status == 504:
        # OpenAI's clients send whatever is 5xx again by themselves; it would run out of time again.
        headers["x-should-retry"] = "false"
    return Response(to_json(body), status, headers, media_type="application/json")


def response_for(error: Exception) -> Response:
    return error_response(*describe(error))


def http_error(status: int, message: str, code: str | None = None) -> Response:
    """Return an error of the HTTP layer itself: no such route, wrong method, no key."""
    return error_response(status, _body(status, message, code=code))


def _body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> ErrorResponse:
    kind = _TYPE_OF_STATUS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return ErrorResponse(ErrorBody(message, kind, param, code))
