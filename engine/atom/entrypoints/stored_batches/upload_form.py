"""Uploads: a multipart form whose file goes to disk as it arrives, never into memory as a whole."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from atom.entrypoints.http.response_headers import header_of
from atom.entrypoints.openai.body import BODY_TIMEOUT_SECONDS, refusal
from atom.entrypoints.request_lines.on_thread import on_thread
from atom.entrypoints.stored_batches.file_store import FileStore, Upload
from atom.entrypoints.stored_batches.records import Purpose, StoredFile
from atom.entrypoints.stored_batches.requests import UploadFields
from atom.errors import RequestError

_MOST_FIELDS, _MOST_FIELD_BYTES, _MOST_NAME_CHARS = 8, 1024, 256
_FLUSH_BYTES = 2**20
_HOW = "send multipart/form-data with the fields purpose (batch) and file"


@dataclass(slots=True)
class _Form:
    """Collect the parts of a form. content: of the file, since `take` was called."""

    values: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    is_complete: bool = False
    _content: bytearray = field(default_factory=bytearray)
    _name: str = ""
    _value: bytearray = field(default_factory=bytearray)
    _header: bytearray = field(default_factory=bytearray)
    _header_value: bytearray = field(default_factory=bytearray)
    _headers: dict[bytes, bytes] = field(default_factory=dict)
    _is_file: bool = False

    def parser(self, boundary: bytes) -> MultipartParser:
        return MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._header_value.extend(
                    data[start:end]
                ),
                "on_header_end": self._end_header,
                "on_headers_finished": self._begin_content,
                "on_part_data": self._more,
                "on_part_end": self._end,
                "on_end": self._complete,
            },
        )

    def take(self) -> bytes:
        """Return the file's content since the last call."""
        content = bytes(self._content)
        self._content.clear()
        return content

    @property
    def held_bytes(self) -> int:
        return len(self._content)

    def _begin(self) -> None:
        self._headers, self._value = {}, bytearray()
        if len(self.values) + (self.filename is not None) >= _MOST_FIELDS:
            raise RequestError(f"the form has more than {_MOST_FIELDS} fields; {_HOW}")

    def _end_header(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._header_value)
        self._header.clear()
        self._header_value.clear()

    def _begin_content(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = options.get(b"name", b"").decode(errors="replace")
        self._is_file = self._name == "file"
        if self._is_file and self.filename is not None:
            raise RequestError("file: is there twice; upload one file at a time", param="file")
        if self._is_file:
            name = options.get(b"filename", b"").decode(errors="replace")
            self.filename = "".join(each for each in name if each.isprintable())
            self.filename = self.filename[:_MOST_NAME_CHARS] or "upload.jsonl"

    def _more(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._content.extend(data[start:end])
            return
        self._value.extend(data[start:end])
        if len(self._value) > _MOST_FIELD_BYTES:
            raise RequestError(f"a field has more than {_MOST_FIELD_BYTES} bytes; {_HOW}")

    def _end(self) -> None:
        if not self._is_file:
            self.values[self._name] = self._value.decode(errors="replace")

    def _complete(self) -> None:
        self.is_complete = True


async def read_upload(http: Request, files: FileStore, owner: str) -> StoredFile:
    """Keep the file of a form. Raises `RequestError`, and nothing is kept then."""
    form = _Form()
    parser = form.parser(_boundary_of(http))
    upload = files.start_upload()
    try:
        fd = os.open(upload.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            await _receive(http, files, (form, parser), (upload, fd))
        finally:
            os.close(fd)
        if not form.is_complete or form.filename is None:
            raise RequestError(f"file: the form has no file that is complete; {_HOW}", param="file")
        expires = _fields_of(form.values).expires_after
        file = StoredFile(
            id=upload.id,
            owner=owner,
            filename=form.filename,
            purpose=Purpose.BATCH,
            size_bytes=upload.size_bytes,
            created_at=files.now(),
            expires_at=None if expires is None else files.now() + expires.seconds,
        )
        await files.keep(file)
        return file
    except OSError as error:
        raise RequestError(f"the file cannot be kept ({error.strerror})", status=507) from error
    finally:
        files.end_upload(upload)


async def _receive(
    http: Request,
    files: FileStore,
    form: tuple[_Form, MultipartParser],
    to: tuple[Upload, int],
) -> None:
    (parts, parser), (upload, fd) = form, to
    chunks = http.stream()
    try:
        while True:
            async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
                chunk = await anext(chunks, None)
            if chunk:
                parser.write(chunk)
            if parts.held_bytes and (chunk is None or parts.held_bytes >= _FLUSH_BYTES):
                content = parts.take()
                files.grow_upload(upload, len(content))
                await on_thread(partial(_write, fd, content))
            if chunk is None:
                break
    except FormParserError as error:
        raise RequestError(f"the form cannot be read ({error}); {_HOW}") from None
    except TimeoutError:
        raise RequestError(
            f"nothing of the file came for {BODY_TIMEOUT_SECONDS:g} s", status=408
        ) from None
    except ClientDisconnect:
        raise RequestError("the client left before the file was complete", status=499) from None


def _write(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _boundary_of(http: Request) -> bytes:
    """Raises `RequestError` (415) for a body that is no form."""
    kind, options = parse_options_header(header_of(http.scope, "content-type") or "")
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= 70:  # RFC 2046's most
        raise RequestError(f"the body is no form with a file; {_HOW}", status=415)
    return boundary


def _fields_of(values: dict[str, str]) -> UploadFields:
    """Raises `RequestError` for fields that are wrong or unknown."""
    fields: dict[str, Any] = {}
    for name, value in values.items():
        part = name.removeprefix("expires_after[").removesuffix("]")
        if name == f"expires_after[{part}]":
            number = int(value) if value.isascii() and value.isdecimal() else value
            fields.setdefault("expires_after", {})[part] = number
        else:
            fields[name] = value
    try:
        return UploadFields.model_validate(fields)
    except ValidationError as error:
        raise refusal(error) from None
