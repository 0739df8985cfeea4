"""A request's bytes to a request model, with bounds on size and time, or a RequestError.

Refuses bodies that are too large, are not JSON, have the wrong shape (naming the field), or have a
field that the table of request fields refuses. Unknown fields are not built into objects (a body
may be full of them, and others wait while it is parsed), but reported, in a header of the answer
and once in the log. Called first by every POST route.
"""

from __future__ import annotations

import asyncio
import codecs
import logging
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Protocol, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

from atom.entrypoints.http.body_budget import BodyShare
from atom.entrypoints.http.body_turns import ClientTurns
from atom.entrypoints.http.open_response import open_response_of
from atom.entrypoints.http.prompt_fit import check_prompt_fits
from atom.entrypoints.http.response_headers import header_of, tell_ignored
from atom.entrypoints.http.value_count import check_value_count
from atom.entrypoints.request_fields.field_check import check_fields
from atom.entrypoints.request_fields.request_body import (
    MAX_DEADLINE_MS,
    MAX_TIMEOUT_SECONDS,
    RequestBody,
)
from atom.errors import RequestError

BODY_TIMEOUT_SECONDS = 60.0
TIMEOUT_HEADER = "x-request-timeout"
DEADLINE_HEADER = "x-request-deadline-ms"
_MOST_PROBLEMS_SHOWN = 3

logger = logging.getLogger(__name__)

Body = TypeVar("Body", bound=RequestBody)
Parsed = TypeVar("Parsed")


async def read_body(
    request: Request, kind: type[Body], share: BodyShare, turns: ClientTurns
) -> Body:
    """Read and parse a body. share: its share of the server's memory. Raises `RequestError` (400,
    408, 413, 415, or 503 while other bodies take all memory)."""
    body, unknown = await read_parsed(request, share, turns, partial(parse_body, kind=kind))
    _tell_unknown(request, unknown)
    return body


def parse_body(data: bytes | bytearray, kind: type[Body]) -> tuple[Body, list[str]]:
    """Return the request, and the paths of its unknown fields. Raises `RequestError` (400)."""
    try:
        body = kind.model_validate_json(data)
    except ValidationError as error:
        refused = refusal(error)
        if refused.param is not None:  # a refused field's remedy is more helpful than its shape
            check_fields(data, kind)
        raise refused from None
    return body, check_fields(data, kind)


def _tell_unknown(request: Request, paths: list[str]) -> None:
    if paths:
        tell_ignored(request.scope, paths)
        _warn_once(", ".join(map(repr, paths)))


@lru_cache(maxsize=256)
def _warn_once(names: str) -> None:
    """Log unknown fields once, since clients send the same with every request."""
    logger.warning("request fields that this server does not know, without effect: %s", names)


async def read_parsed(
    request: Request, share: BodyShare, turns: ClientTurns, parse: Callable[[bytearray], Parsed]
) -> Parsed:
    """Read a body's text and `parse` it, on another thread if it is long. Raises `RequestError` as
    `read_body` does, and the errors of `parse`."""
    data = await _read_text(request, share)

    def work() -> Parsed:
        _check_size(data, share)
        return parse(data)

    return await turns.run(len(data), work)


def _check_size(data: bytearray, share: BodyShare) -> None:
    """Refuse a body with too many values or too long a prompt. Raises `RequestError`."""
    check_value_count(data)
    check_prompt_fits(data, share.most_tokens)


async def _read_text(request: Request, share: BodyShare) -> bytearray:
    encoding = (header_of(request.scope, "content-encoding") or "").strip().lower()
    if encoding not in ("", "identity"):
        raise RequestError(
            f"the body's content-encoding is {encoding}; this server reads plain JSON", status=415
        )
    declared = header_of(request.scope, "content-length") or ""
    if declared.isdigit() and int(declared) > share.most_bytes:
        raise _too_large(share)
    data = await read_bytes(request, share)
    # RFC 8259 lets readers pass over a byte order mark, which some clients of Windows write.
    if data.startswith(codecs.BOM_UTF8):
        del data[: len(codecs.BOM_UTF8)]
    return data


async def read_bytes(request: Request, share: BodyShare) -> bytearray:
    """Read a body of any kind. Raises `RequestError` as `read_body` does."""
    response = open_response_of(request.scope)
    waits = response is None or not response.whole_request_came
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS if waits else None):
            async for chunk in request.stream():
                size_bytes = len(data) + len(chunk)
                if size_bytes > share.most_bytes:
                    raise _too_large(share)
                share.grow(size_bytes)
                data += chunk
    except TimeoutError:
        raise RequestError(
            f"the body did not arrive within {BODY_TIMEOUT_SECONDS:g} s", status=408
        ) from None
    except ClientDisconnect:
        raise RequestError("the client left before the body was complete", status=499) from None
    return data


class Timed(Protocol):
    """A body that may bound the time of its answer, in seconds."""

    timeout_seconds: float | None
    timeout: float | None


def timeout_of(request: Request, body: Timed) -> float | None:
    """Return the shortest of the request's own timeouts, in seconds. Raises `RequestError` if the
    header holds none."""
    bounds = [body.timeout_seconds, body.timeout]
    header = header_of(request.scope, TIMEOUT_HEADER)
    if header is not None:
        bounds.append(_time(TIMEOUT_HEADER, header, ("seconds", MAX_TIMEOUT_SECONDS)))
    return min((bound for bound in bounds if bound is not None), default=None)


class Due(Protocol):
    """A body that may bound the time until its first token."""

    @property
    def deadline_ms(self) -> float | None: ...


def deadline_of(request: Request, body: Due) -> float | None:
    """Return the request's own time until its first token, in seconds; None if it states none.
    Raises `RequestError` if the header holds none."""
    bounds = [body.deadline_ms]
    header = header_of(request.scope, DEADLINE_HEADER)
    if header is not None:
        bounds.append(_time(DEADLINE_HEADER, header, ("milliseconds", MAX_DEADLINE_MS)))
    least = min((bound for bound in bounds if bound is not None), default=None)
    return None if least is None else least / 1e3


def _time(name: str, header: str, bounds: tuple[str, int]) -> float:
    """Read a header of a time. bounds: its unit, and the most of it."""
    unit, most = bounds
    try:
        value = float(header)
    except ValueError:
        value = 0.0
    if not 0 < value <= most:
        raise RequestError(
            f"the header {name} must hold {unit}, above 0 and at most {most}", param=name
        )
    return value


def _too_large(share: BodyShare) -> RequestError:
    return RequestError(
        f"the body is larger than {share.most_bytes // 2**20} MiB, the most this server reads",
        status=413,
    )


def refusal(error: ValidationError) -> RequestError:
    """Build the error for a body that pydantic refuses."""
    problems = error.errors(include_url=False, include_input=False)
    first = problems[0]
    if first["type"] == "json_invalid":
        return RequestError(f"the body is not valid JSON: {first['msg']}", code="invalid_json")
    if not first["loc"]:
        return RequestError("the body must be a JSON object with the request's fields")
    sentences = [f"{_path(problem)}: {_reason(problem)}" for problem in problems]
    shown = "; ".join(sentences[:_MOST_PROBLEMS_SHOWN])
    return RequestError(shown, param=str(first["loc"][0]))


def _path(problem: ErrorDetails) -> str:
    """Write the place of a problem as a client would: messages[0].content[1].type."""
    path = ""
    for part in problem["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("<"):  # our tags of a union's branches
            path += f".{part}" if path else part
    return path


def _reason(problem: ErrorDetails) -> str:
    if problem["type"] == "missing":
        return "is required"
    if problem["type"] == "literal_error" and "content" in problem["loc"]:
        return f"{problem['msg'].lower()}; this server takes text only"
    return problem["msg"][:1].lower() + problem["msg"][1:]
