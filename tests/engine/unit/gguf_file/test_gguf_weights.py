"""Any region of a tensor is that region of the whole, dequantised by the `gguf` package.

Rows come some at a time, whole heads at once where llama.cpp has permuted them, and beside what is
returned little memory is taken.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize

from atom.errors import ModelError
from atom.gguf_file.tensor_types import READ_TYPES
from atom.model_loader import gguf_shard
from atom.model_loader.gguf_shard import GgufShard

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, ROWS = 512, 4, 2, 16, 96
FIELDS = {
    "block_count": 1, "context_length": 64, "embedding_length": HIDDEN,
    "feed_forward_length": ROWS, "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS, "attention.key_length": HEAD_DIM,
    "attention.value_length": HEAD_DIM,
}  # fmt: skip
SHAPES = {
    "token_embd": (ROWS, HIDDEN),
    "blk.0.attn_q": (HEADS * HEAD_DIM, HIDDEN),
    "blk.0.attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
    "blk.0.ffn_up": (ROWS, HIDDEN),
}


def codes(kind: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Blocks of a type with any bits and with scales that are numbers."""
    of_kind = GGMLQuantizationType[kind]
    elements, size = GGML_QUANT_SIZES[of_kind]
    draw = np.random.default_rng(seed)
    data = draw.integers(0, 256, (*shape[:-1], shape[-1] // elements * size), dtype=np.uint8)
    # No 16 bits without this one are an infinity, in either form of them.
    return (data.view(np.uint16) & 0xBFFF).view(np.uint8)


def write(file: Path, tensors: dict[str, tuple[np.ndarray, str]]) -> Path:
    writer = GGUFWriter(file, "llama")
    for key, value in FIELDS.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for name, (data, kind) in tensors.items():
        of_kind = GGMLQuantizationType[kind]
        writer.add_tensor(f"{name}.weight", data, raw_dtype=of_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def wanted(name: str, data: np.ndarray, kind: str) -> torch.Tensor:
    values = dequantize(data, GGMLQuantizationType[kind])
    if name.endswith(("attn_q", "attn_k")):
        by_head = values.reshape(-1, HEAD_DIM // 2, 2, HIDDEN)
        values = np.concatenate([by_head[:, :, 0], by_head[:, :, 1]], axis=1)
        values = values.reshape(-1, HIDDEN)
    return torch.from_numpy(np.array(values))


NAMES = {
    "token_embd": "model.embed_tokens.weight",
    "blk.0.attn_q": "model.layers.0.self_attn.q_proj.weight",
    "blk.0.attn_k": "model.layers.0.self_attn.k_proj.weight",
    "blk.0.ffn_up": "model.layers.0.mlp.up_proj.weight",
}


@pytest.mark.parametrize("kind", READ_TYPES)
def test_every_region_of_every_type(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_shard, "_CHUNK_BYTES", 7 * 4 * HIDDEN)  # rows at a time, or one head
    stored = {
        name: (codes(kind, shape, seed), kind) for seed, (name, shape) in enumerate(SHAPES.items())
    }
    file = write(tmp_path / "model.gguf", stored)
    with GgufShard(file) as shard:
        assert sorted(shard.keys()) == sorted(NAMES.values())
        for name, (data, _) in stored.items():
            whole = wanted(name, data, kind)
            rows, columns = whole.shape
            assert shard.get_slice(NAMES[name]).get_shape() == [rows, columns]
            for first, end in ((0, rows), (0, rows // 2), (rows // 2, rows), (5, 6), (3, rows - 2)):
                for left, right in ((0, columns), (columns // 2, columns), (37, 201)):
                    region = ((first, end), (left, right))
                    found = shard.read(NAMES[name], region, torch.float32)
                    assert torch.equal(found, whole[first:end, left:right]), (name, region)
            half = shard.read(NAMES[name], ((0, rows), (0, columns)), torch.bfloat16)
            assert torch.equal(half, whole.to(torch.bfloat16))


def test_little_memory_is_taken_beside_the_weights(tmp_path: Path) -> None:
    shape = (40_000, HIDDEN)  # 80 MB in float32
    stored = {"token_embd": (codes("Q4_K", shape), "Q4_K")}
    file = write(tmp_path / "model.gguf", stored)
    del stored
    with GgufShard(file) as shard:
        tracemalloc.start()  # numpy's arrays are counted, torch's tensors are not
        found = shard.read(NAMES["token_embd"], ((0, 40_000), (0, HIDDEN)), torch.bfloat16)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert found.nbytes == 2 * 40_000 * HIDDEN
    assert peak < 32 << 20


def test_a_file_that_becomes_shorter_is_said(tmp_path: Path) -> None:
    shape = SHAPES["token_embd"]
    file = write(tmp_path / "model.gguf", {"token_embd": (codes("Q8_0", shape), "Q8_0")})
    with GgufShard(file) as shard:
        with file.open("r+b") as opened:
            opened.truncate(file.stat().st_size - 1000)
        with pytest.raises(ModelError, match=r"token_embd\.weight cannot be read to its end"):
            shard.read(NAMES["token_embd"], ((0, ROWS), (0, HIDDEN)), torch.float32)


@pytest.mark.parametrize("shape", [(HEADS * HEAD_DIM + 1, HIDDEN), (2, HEAD_DIM, HIDDEN)])
def test_rows_that_are_no_heads_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    stored: dict[str, Any] = {
        "token_embd": (codes("Q8_0", SHAPES["token_embd"]), "Q8_0"),
        "blk.0.attn_q": (codes("Q8_0", shape), "Q8_0"),
    }
    with GgufShard(write(tmp_path / "model.gguf", stored)) as shard:
        with pytest.raises(ModelError, match=r"attn_q\.weight has shape .* whole heads of 16"):
            shard.read(NAMES["blk.0.attn_q"], ((0, 1), (0, HIDDEN)), torch.float32)
