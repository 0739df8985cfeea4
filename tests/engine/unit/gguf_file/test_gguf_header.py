"""The header of a GGUF file is what the `gguf` package reads of it; a damaged one is refused.

Wherever a file is cut and whatever its lengths say, the answer is an error with the file's name, at
once and without a large allocation.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.errors import ModelError
from atom.gguf_file.header import GgufHeader, is_gguf, read_header
from atom.gguf_file.tensor_types import TENSOR_TYPES
from atom.gguf_file.tokenizer import read_gguf_tokenizer
from atom.model_loader.gguf_shard import GgufShard
from tests.support.models.gguf_model import write_gguf
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.random_search import examples

MOST_BYTES = 8 << 20  # that reading a header of some 20 kB may take


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    checkpoint = make_tiny_checkpoint(folder / "checkpoint", "llama", layers=1, kv_heads=2)
    return write_gguf(checkpoint, folder / "model.gguf", matrices="Q8_0")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place for a file, written anew for each example."""
    return tmp_path_factory.mktemp("damaged") / "model.gguf"


def number(form: str, value: float) -> bytes:
    return struct.pack(f"<{form}", value)


def text(value: str) -> bytes:
    return number("Q", len(value.encode())) + value.encode()


def beginning(tensors: int, keys: int, version: int = 3) -> bytes:
    return b"GGUF" + number("I", version) + number("Q", tensors) + number("Q", keys)


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    sizes = b"".join(number("Q", size) for size in shape)
    return text(name) + number("I", len(shape)) + sizes + number("I", kind) + number("Q", offset)


def test_a_sound_file_reads_as_the_package_reads_it(sound: Path) -> None:
    header, reader = read_header(sound), GGUFReader(sound)
    own = {key: field.contents() for key, field in reader.fields.items() if "GGUF." not in key}
    assert header.metadata == own
    assert len(header.tensors) == len(reader.tensors)
    for other in reader.tensors:
        found = header.tensors[other.name]
        assert found.kind.name == other.tensor_type.name
        assert list(found.shape) == list(reversed(other.shape.tolist()))
        assert found.first_byte == other.data_offset
        assert found.size_bytes == other.n_bytes


def test_types_are_those_of_the_package() -> None:
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
    for value, kind in TENSOR_TYPES.items():
        assert theirs.get(value, (kind.name,))[0] == kind.name
    ours = {
        value: (kind.name, kind.block_elements, kind.block_bytes)
        for value, kind in TENSOR_TYPES.items()
        if value in theirs
    }
    assert ours == theirs
    assert {kind.name for kind in TENSOR_TYPES.values() if kind.read} <= {
        kind.name for kind in GGMLQuantizationType
    }


def test_a_file_is_known_by_its_name_or_its_beginning(sound: Path, tmp_path: Path) -> None:
    other = tmp_path / "blob"
    other.write_bytes(sound.read_bytes()[:100])
    assert is_gguf(other)
    other.write_bytes(b"{}")
    assert not is_gguf(other)
    assert not is_gguf(tmp_path)
    assert not is_gguf(tmp_path / "none.gguf")


REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is empty"),
    "another file": (b"PK\x03\x04" + bytes(40), "is no GGUF file"),
    "version 1": (beginning(0, 0, version=1), "has version 1; versions 2 and 3"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "written for big-endian machines"),
    "keys that are not there": (beginning(0, 2**63), "truncated within key 0"),
    "tensors that are not there": (beginning(2**20, 0), "truncated within tensor 0"),
    "more tensors than any model": (beginning(2**40, 0), f"number of tensors is {2**40}"),
    "a key of 2**60 bytes": (beginning(0, 1) + number("Q", 2**60), "key 0 of 1 is a text of"),
    "a text beyond the end": (
        beginning(0, 1) + text("a") + number("I", 8) + number("Q", 2**20) + b"short",
        "truncated within the value of 'a'",
    ),
    "a list beyond the end": (
        beginning(0, 1) + text("a") + number("I", 9) + number("I", 4) + number("Q", 2**23),
        "truncated within the value of 'a'",
    ),
    "a list of 2**62 texts": (
        beginning(0, 1) + text("a") + number("I", 9) + number("I", 8) + number("Q", 2**62),
        f"'a' is a list of {2**62} items",
    ),
    "a list of lists": (
        beginning(0, 1) + text("a") + number("I", 9) + number("I", 9) + number("Q", 1),
        "is a list of type 9",
    ),
    "a value of no type": (beginning(0, 1) + text("a") + number("I", 77), "has type 77"),
    "a key twice": (
        beginning(0, 2) + 2 * (text("a") + number("I", 4) + number("I", 1)),
        "'a' is there twice",
    ),
    "a text that is none": (
        beginning(0, 1) + text("a") + number("I", 8) + number("Q", 2) + b"\xff\xfe",
        "is no UTF-8",
    ),
    "an odd alignment": (
        beginning(0, 1) + text("general.alignment") + number("I", 4) + number("I", 24),
        "general.alignment is 24",
    ),
    "an alignment of none": (
        beginning(0, 1) + text("general.alignment") + number("I", 4) + number("I", 0),
        "general.alignment is 0",
    ),
    "a tensor of 9 dimensions": (beginning(1, 0) + tensor("w", (1,) * 9), "has 9 dimensions"),
    "a tensor of nothing": (beginning(1, 0) + tensor("w", (0, 4)), "which is empty"),
    "a tensor of 2**124 elements": (
        beginning(1, 0) + tensor("w", (2**62, 2**62)) + bytes(64), "is truncated: tensor 'w' ends",
    ),
    "a tensor of an unknown type": (
        beginning(1, 0) + tensor("w", (4,), kind=99), "has type number 99; read are F32, F16, Q4_0",
    ),
    "a tensor of a type that is not read": (
        beginning(1, 0) + tensor("w", (256,), kind=16), "has type IQ2_XXS; .*llama-quantize",
    ),
    "half a block": (beginning(1, 0) + tensor("w", (48,), kind=8) + bytes(128), "no whole blocks"),
    "a tensor that is not aligned": (
        beginning(1, 0) + tensor("w", (4,), offset=4) + bytes(64), "not aligned to 32",
    ),
    "a tensor twice": (
        beginning(2, 0) + 2 * tensor("w", (4,)) + bytes(128), "tensor 'w' is there twice",
    ),
    "a tensor within another": (
        beginning(2, 0) + tensor("v", (64,)) + tensor("w", (4,), offset=32) + bytes(512),
        "tensor 'w' begins within 'v'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_said(tmp_path: Path, case: str) -> None:
    file = tmp_path / "model.gguf"
    content, words = REFUSED[case]
    file.write_bytes(content)
    with pytest.raises(ModelError, match=rf"model\.gguf: .*{words}"):
        bounded(lambda: read_header(file))


def bounded(read: Callable[[], object]) -> None:
    """Read, and see that not much memory was taken for it."""
    tracemalloc.start()
    try:
        read()
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MOST_BYTES


def read_all(file: Path) -> None:
    """Whatever of a file is read before a model is served."""
    header: GgufHeader = read_header(file)
    read_gguf_tokenizer(file)
    with GgufShard(file) as shard:
        for name in shard.keys():  # noqa: SIM118 - not a dict
            shape = shard.get_slice(name).get_shape()
            shard.read(name, [(0, size) for size in shape], torch.float32)
    assert header.tensors


@settings(max_examples=examples(24), deadline=None)
@given(share=st.floats(0.0, 1.0, exclude_max=True))
def test_a_file_cut_anywhere_is_refused(sound: Path, damaged: Path, share: float) -> None:
    content = sound.read_bytes()
    damaged.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ModelError, match=r"model\.gguf: is (truncated|empty)"):
        bounded(lambda: read_all(damaged))


def header_bytes(file: Path) -> int:
    return min(tensor.first_byte for tensor in read_header(file).tensors.values())


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_numbers_that_lie_are_refused_or_harmless(
    sound: Path, damaged: Path, data: st.DataObject
) -> None:
    """Eight bytes anywhere in the header become another number, as a length, a count or an offset
    would be changed: an error that names the file, or a file that can be read whole."""
    content = bytearray(sound.read_bytes())
    at = data.draw(st.integers(0, header_bytes(sound) - 8))
    lies = st.sampled_from([0, 1, 2**16, 2**31 - 1, 2**32, 2**40, 2**62, 2**63, 2**64 - 1])
    content[at : at + 8] = number("Q", data.draw(lies | st.integers(0, 2**64 - 1)))
    damaged.write_bytes(content)
    refusal = ""
    try:
        bounded(lambda: read_all(damaged))
    except ModelError as error:
        refusal = str(error)
    assert not refusal or str(damaged) in refusal
