"""Lines of OpenAI's batch files: a request out of one, an answer into one, and what is answered.

An answer is one whole line, written by one call, so that a run that ends at any moment leaves whole
lines and at most one torn one, which the next run drops and asks again.
"""

from __future__ import annotations

import codecs
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from atom.bounded_input.bounded_json import JsonBounds, check_json_size
from atom.errors import ConfigError, RequestError

URLS = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/score",
    "/v1/rerank",
)  # fmt: skip
_LONGEST_ID = 512
_SERVER_ERROR = 500
_BLOCK_BYTES = 1 << 16
# A body has separate bounds with the server's own messages; these protect the parser.
_LINE_BOUNDS = JsonBounds(most_bytes=64 << 20, most_values=1 << 23, most_depth=512)


class _Line(msgspec.Struct):
    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class _Body(msgspec.Struct):
    stream: bool | None = None


class _Refused(msgspec.Struct):
    message: str = ""


class _Answered(msgspec.Struct):
    custom_id: str | None = None
    response: dict[str, Any] | None = None
    error: _Refused | None = None


_LINE = msgspec.json.Decoder(_Line)
_BODY = msgspec.json.Decoder(_Body)
_ANSWERED = msgspec.json.Decoder(_Answered)


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A request of a file. body: JSON."""

    custom_id: str
    url: str
    body: bytes


def read_request(line: bytes, number: int) -> BatchRequest:
    """Parse a line, the `number`-th of its file. Raises `RequestError`."""
    try:
        check_json_size(line, _LINE_BOUNDS)
        found = _LINE.decode(line)
        streams = _BODY.decode(found.body).stream
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"line {number} is no request: {error}; give custom_id, method, url and body"
        ) from None
    if not 0 < len(found.custom_id) <= _LONGEST_ID:
        raise RequestError(f"line {number}: custom_id must have 1 to {_LONGEST_ID} characters")
    if found.method != "POST" or found.url not in URLS:
        raise RequestError(
            f"line {number}: {found.method[:16]} {found.url[:64]} is not answered in batches; use "
            f"POST to {', '.join(URLS)}"
        )
    if streams:
        raise RequestError(f"line {number}: stream is not possible in batches; leave it out")
    return BatchRequest(found.custom_id, found.url, bytes(found.body))


def custom_id_of(line: bytes) -> str | None:
    """Return the name of an invalid request line; None if it has none."""
    try:
        check_json_size(line, _LINE_BOUNDS)
        found = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return None
    name = found.get("custom_id") if isinstance(found, dict) else None
    return name if isinstance(name, str) and name else None


def answer_line(custom_id: str, status: int, body: bytes) -> bytes:
    """Write the line of a request that was answered, were it by an error."""
    response = {
        "status_code": status,
        "request_id": uuid4().hex,
        "body": msgspec.Raw(body or b"null"),
    }
    return _line(custom_id, response, None)


def error_line(custom_id: str | None, message: str, code: str = "invalid_request") -> bytes:
    """Write the answer line of a request that was not asked, such as an invalid one."""
    return _line(custom_id, None, {"code": code, "message": message})


def _line(custom_id: str | None, response: object, error: object) -> bytes:
    found = {"id": f"batch_req_{uuid4().hex}", "custom_id": custom_id}
    return msgspec.json.encode(found | {"response": response, "error": error}) + b"\n"


class AnswerFile:
    """Append answers to a file, for one run at a time. answered: names of the requests that it
    answers, except with an error of the server, which may differ next time. refused: the recorded
    refusals of invalid lines, by name and message."""

    def __init__(
        self, path: Path, *, least_fault: int = _SERVER_ERROR, title: str | None = None
    ) -> None:
        """least_fault: the first HTTP status that is no answer. title: names the file in errors;
        None for the flag and the path. Raises `ConfigError` if the file cannot be written, or
        another run writes it."""
        self._least_fault = least_fault
        self._title = f"--output-file {path}" if title is None else title
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise ConfigError(
                f"{self._title}: another run writes it; wait for its end, or name another file"
            ) from None
        os.ftruncate(self._fd, _end_of_whole_lines(self._fd))
        self.answered: set[str] = set()
        self.refused: set[tuple[str | None, str]] = set()
        with path.open("rb") as lines:
            for line in lines:
                self._note(line)

    def _note(self, line: bytes) -> None:
        try:
            check_json_size(line, _LINE_BOUNDS)
            found = _ANSWERED.decode(line)
        except (ValueError, RecursionError):  # no answer to a request with a name
            return
        if found.error is not None:
            self.refused.add((found.custom_id, found.error.message))
        status = (found.response or {}).get("status_code")
        if found.custom_id and isinstance(status, int) and status < self._least_fault:
            self.answered.add(found.custom_id)

    def has(self, custom_id: str) -> bool:
        return custom_id in self.answered

    def answer(self, custom_id: str, status: int, body: bytes) -> None:
        """Append the answer to a request. Raises as `append`."""
        self.append(answer_line(custom_id, status, body))

    def refuse(self, custom_id: str | None, message: str) -> None:
        """Record an invalid line once, however many runs read it. Raises `ConfigError` as
        `append`."""
        if (custom_id, message) not in self.refused:
            self.refused.add((custom_id, message))
            self.append(error_line(custom_id, message))

    def append(self, line: bytes) -> None:
        """Raises `ConfigError` when there is no room."""
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError(f"{self._title}: cannot be written ({error.strerror})")

    def close(self) -> None:
        os.close(self._fd)


def _end_of_whole_lines(fd: int) -> int:
    """Count the bytes up to the last end of a line."""
    end = os.fstat(fd).st_size
    while end:
        start = max(0, end - _BLOCK_BYTES)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def lines_of(path: Path, most_bytes: int = _LINE_BOUNDS.most_bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that hold something, with their numbers. most_bytes: of a line.
    Raises `RequestError` at a longer one."""
    with path.open("rb") as lines:
        number = 0
        while line := lines.readline(most_bytes + 1):
            number += 1
            if len(line) > most_bytes:
                raise RequestError(f"line {number} has more than {most_bytes >> 20} MiB")
            request = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if request.strip():
                yield number, request
