"""The header of a GGUF file: its metadata, and the position of each tensor. Torch-free.

The reader accepts files from any source. It trusts no length before it has found the bytes that the
length counts, so it allocates no large memory and never reads beyond the end. Every fault is a
`ModelError` with the file and the place. (The `gguf` package's own reader trusts the lengths, and
takes 5 s for a vocabulary of 50,000.) Knows no model; the numbers are those of the format's
description (ggml/docs/gguf.md, version 3). Called by checkpoint.py, the tokenizer and the loader.
"""

from __future__ import annotations

import itertools
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from atom.errors import ModelError
from atom.gguf_file.tensor_types import READ_TYPES, TENSOR_TYPES, TensorType

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MOST_ALIGNMENT = 1 << 20
_MOST_HEADER_BYTES = 1 << 26  # the largest vocabularies, with their merges, take 16 MiB
_MOST_ITEMS = 1 << 24  # of an array, as many as a vocabulary may have
_MOST_KEY_BYTES = 1 << 16
_MOST_TENSORS = 1 << 20
_MOST_DIMENSIONS = 4
_MOST_SHOWN = 80  # characters of a name in a message
_STRING, _ARRAY = 8, 9
# Struct's letter for each type of value.
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip

Value = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The position of a tensor in its file. shape: rows first, as in torch; first_byte: within the
    file."""

    name: str
    kind: TensorType
    shape: tuple[int, ...]
    first_byte: int

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one row, the last dimension."""
        return self.shape[-1] // self.kind.block_elements * self.kind.block_bytes

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape[:-1]) * self.row_bytes


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The parts of a GGUF file before its weights. tensors: by their names in the file."""

    file: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, StoredTensor]


def is_gguf(file: Path) -> bool:
    """Return whether a file is, or by its name should be, a GGUF file."""
    if file.suffix.lower() == ".gguf":
        return file.is_file()
    try:
        with file.open("rb") as opened:
            return opened.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_header(file: Path) -> GgufHeader:
    """Read all but the weights. Raises `ModelError`."""
    try:
        with file.open("rb") as opened:
            size = file.stat().st_size
            if not size:
                raise ModelError(f"{file}: is empty; copy or download it again")
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Cursor(file, data, size).header()
    except OSError as error:
        raise ModelError(
            f"{file}: cannot be read ({error}); check the file and its permissions"
        ) from error


class _Cursor:
    """Read through a header. It reads nothing beyond the file, or beyond the most that a sound
    header has."""

    def __init__(self, file: Path, data: mmap.mmap, size: int) -> None:
        self._file, self._data, self._size = file, data, size
        self._end = min(size, _MOST_HEADER_BYTES)
        self._at = 0
        self._place = "its beginning"

    def header(self) -> GgufHeader:
        """Read the whole header."""
        if self._take(len(MAGIC)) != MAGIC:
            raise ModelError(f"{self._file}: is no GGUF file: it does not begin with GGUF")
        version = self._number("I")
        if version not in _VERSIONS:
            swapped = struct.unpack(">I", struct.pack("<I", version))[0] in _VERSIONS
            what = "is written for big-endian machines" if swapped else f"has version {version}"
            raise ModelError(
                f"{self._file}: {what}; versions {' and '.join(map(str, _VERSIONS))} of GGUF, "
                "little-endian, are read: convert the model again with a current llama.cpp"
            )
        tensor_count, key_count = self._number("Q"), self._number("Q")
        metadata = self._metadata(key_count)
        tensors = self._tensors(tensor_count, _alignment(self._file, metadata))
        return GgufHeader(self._file, metadata, tensors)

    def _metadata(self, count: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for index in range(count):
            self._place = f"key {index} of {count}"
            key = self._string(_MOST_KEY_BYTES)
            self._place = f"the value of {_shown(key)}"
            if key in found:
                self._refuse("is there twice")
            found[key] = self._value(self._number("I"))
        return found

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            self._refuse(f"has type {kind}, which GGUF has not")
        return self._scalars(kind, 1)[0]

    def _array(self) -> Value:
        kind, count = self._number("I"), self._number("Q")
        if count > _MOST_ITEMS:
            self._refuse(f"is a list of {count} items, and {_MOST_ITEMS} are the most")
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        if kind not in _SCALARS:
            self._refuse(f"is a list of type {kind}; numbers and texts alone may be in one")
        return self._scalars(kind, count)

    def _scalars(self, kind: int, count: int) -> list[int] | list[float] | list[bool]:
        form = _SCALARS[kind]
        return list(struct.unpack(f"<{count}{form}", self._take(count * struct.calcsize(form))))

    def _string(self, most: int = _MOST_HEADER_BYTES) -> str:
        length = self._number("Q")
        if length > most:
            self._refuse(f"is a text of {length} bytes")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            self._refuse(f"is no UTF-8 ({error.reason})")

    def _tensors(self, count: int, alignment: int) -> dict[str, StoredTensor]:
        if count > _MOST_TENSORS:
            self._place = "the number of tensors"
            self._refuse(f"is {count}")
        offsets: list[tuple[str, TensorType, tuple[int, ...], int]] = []
        for index in range(count):
            self._place = f"tensor {index} of {count}"
            name = self._string(_MOST_KEY_BYTES)
            self._place = f"tensor {_shown(name)}"
            shape, kind = self._shape(), self._tensor_type()
            offsets.append((name, kind, shape, self._number("Q")))
        start = -(-self._at // alignment) * alignment
        found: dict[str, StoredTensor] = {}
        for name, kind, shape, offset in offsets:
            self._place = f"tensor {_shown(name)}"
            if name in found:
                self._refuse("is there twice")
            if offset % alignment:
                self._refuse(f"stands at byte {offset}, which is not aligned to {alignment}")
            found[name] = StoredTensor(name, kind, shape, start + offset)
            self._check_extent(found[name])
        self._check_overlaps(list(found.values()))
        return found

    def _shape(self) -> tuple[int, ...]:
        dimensions = self._number("I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            self._refuse(f"has {dimensions} dimensions")
        shape = tuple(reversed([self._number("Q") for _ in range(dimensions)]))
        if not all(shape):
            self._refuse(f"has shape {list(shape)}, which is empty")
        return shape

    def _tensor_type(self) -> TensorType:
        number = self._number("I")
        kind = TENSOR_TYPES.get(number)
        if kind is None or not kind.read:
            named = f"number {number}" if kind is None else kind.name
            raise ModelError(
                f"{self._file}: {self._place} has type {named}; read are {', '.join(READ_TYPES)}: "
                "quantise the model to one of these (llama-quantize), or use another file of it"
            )
        return kind

    def _check_extent(self, tensor: StoredTensor) -> None:
        if tensor.shape[-1] % tensor.kind.block_elements:
            self._refuse(
                f"has rows of {tensor.shape[-1]} elements, which are no whole blocks of "
                f"{tensor.kind.name}"
            )
        end = tensor.first_byte + tensor.size_bytes
        if end > self._size:
            raise ModelError(
                f"{self._file}: is truncated: {self._place} ends at byte {end}, and the file has "
                f"{self._size}; copy or download it again"
            )

    def _check_overlaps(self, tensors: list[StoredTensor]) -> None:
        tensors.sort(key=lambda tensor: tensor.first_byte)
        for before, after in itertools.pairwise(tensors):
            if before.first_byte + before.size_bytes > after.first_byte:
                self._place = f"tensor {_shown(after.name)}"
                self._refuse(f"begins within {_shown(before.name)}")

    def _number(self, form: str) -> int:
        return int(struct.unpack(f"<{form}", self._take(struct.calcsize(form)))[0])

    def _take(self, count: int) -> bytes:
        first, self._at = self._at, self._at + count
        if self._at > self._end:
            if self._end < self._size:
                self._refuse(f"goes beyond the {_MOST_HEADER_BYTES} bytes that a header may have")
            raise ModelError(
                f"{self._file}: is truncated within {self._place} (the file has {self._size} "
                "bytes); copy or download it again"
            )
        return self._data[first : self._at]

    def _refuse(self, what: str) -> NoReturn:
        raise ModelError(
            f"{self._file}: {self._place} {what}: the file is damaged; download it again"
        )


def _shown(name: str) -> str:
    return repr(name if len(name) <= _MOST_SHOWN else f"{name[:_MOST_SHOWN]}…")


def _alignment(file: Path, metadata: Mapping[str, Value]) -> int:
    value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if isinstance(value, bool) or not isinstance(value, int):
        value = 0
    if not 1 <= value <= _MOST_ALIGNMENT or value.bit_count() != 1:
        raise ModelError(
            f"{file}: general.alignment is {metadata['general.alignment']!r}; it must be a power "
            f"of two up to {_MOST_ALIGNMENT}: the file is damaged; download it again"
        )
    return value
