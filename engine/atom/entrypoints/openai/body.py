"""A request's bytes to a request model, with bounds on size and time, or a RequestError.

Refuses what it should not read (too large), what is not JSON, what has the wrong shape (naming the
field), and known fields that this server does not implement. Called first by every POST route.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

from atom.entrypoints.openai.protocol import MAX_TIMEOUT_SECONDS, REFUSED, GenerationRequest
from atom.errors import RequestError

MAX_BODY_BYTES = 8 * 1024 * 1024
BODY_TIMEOUT_SECONDS = 60.0
TIMEOUT_HEADER = "x-request-timeout"
_MOST_PROBLEMS_SHOWN = 3

Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request, kind: type[Body]) -> Body:
    """The parsed body. Raises `RequestError` (400, 408, 413 or 415)."""
    data = await _read_bytes(request)
    try:
        body = kind.model_validate_json(data)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_input=False)) from None
    refuse_unsupported(body.model_extra or {})
    return body


async def _read_bytes(request: Request) -> bytes:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise RequestError(
            f"the body's content-encoding is {encoding}; this server reads plain JSON", status=415
        )
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise _too_large()
    chunks: list[bytes] = []
    size_bytes = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            async for chunk in request.stream():
                size_bytes += len(chunk)
                if size_bytes > MAX_BODY_BYTES:
                    raise _too_large()
                chunks.append(chunk)
    except TimeoutError:
        raise RequestError(
            f"the body did not arrive within {BODY_TIMEOUT_SECONDS:g} s", status=408
        ) from None
    except ClientDisconnect:
        raise RequestError("the client left before the body was complete", status=499) from None
    return b"".join(chunks)


def timeout_of(request: Request, body: GenerationRequest) -> float | None:
    """The shortest of the times that the request gives itself, in seconds. Raises `RequestError`
    when the header does not hold one."""
    bounds = [body.timeout_seconds, body.timeout]
    header = request.headers.get(TIMEOUT_HEADER)
    if header is not None:
        bounds.append(_seconds(header))
    return min((bound for bound in bounds if bound is not None), default=None)


def _seconds(header: str) -> float:
    try:
        seconds = float(header)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_TIMEOUT_SECONDS:
        raise RequestError(
            f"the header {TIMEOUT_HEADER} must hold seconds, above 0 and at most "
            f"{MAX_TIMEOUT_SECONDS}",
            param=TIMEOUT_HEADER,
        )
    return seconds


def _too_large() -> RequestError:
    return RequestError(
        f"the body is larger than {MAX_BODY_BYTES // 1024 // 1024} MiB, the most this server reads",
        status=413,
    )


def _refusal(problems: list[ErrorDetails]) -> RequestError:
    first = problems[0]
    if first["type"] == "json_invalid":
        return RequestError(f"the body is not valid JSON: {first['msg']}", code="invalid_json")
    if not first["loc"]:
        return RequestError("the body must be a JSON object with the request's fields")
    sentences = [f"{_path(problem)}: {_reason(problem)}" for problem in problems]
    shown = "; ".join(sentences[:_MOST_PROBLEMS_SHOWN])
    return RequestError(shown, param=str(first["loc"][0]))


def _path(problem: ErrorDetails) -> str:
    """messages[0].content[1].type: as a client would write it."""
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


def refuse_unsupported(extra: Mapping[str, Any]) -> None:
    """Raises `RequestError` for a field that would change the answer if it were implemented."""
    for name, value in extra.items():
        if value is None or name not in REFUSED or _asks_nothing(value, REFUSED[name]):
            continue
        harmless = ", ".join(repr(item) for item in REFUSED[name])
        remedy = f"leave it out or send {harmless}" if harmless else "leave it out"
        raise RequestError(
            f"{name} is not supported by this server; {remedy}",
            param=name,
            code="unsupported_parameter",
        )


def _asks_nothing(value: Any, harmless: Iterable[Any]) -> bool:
    # Types count: False is not 0 (logprobs 0 still asks for the chosen token's).
    return any(type(value) is type(item) and value == item for item in harmless)
