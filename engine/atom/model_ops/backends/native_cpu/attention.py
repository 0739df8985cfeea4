"""Rotation, KV cache store and paged attention on the CPU's kernels.

The kernel reads the cache in place, query by query: best for decodes and short prompts. A long
prompt's scores are a product of matrices, so it goes to torch's attention over gathered tokens,
in pieces that bound the mask.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atom.model_ops.backends.interface import AttentionShape
from atom.model_ops.backends.native_cpu.library import (
    floats,
    integers,
    library,
    optional_floats,
)
from atom.utils.forward_context import AttentionMetaData

_LONG_SCORES = 2**16  # queries times context of a prompt, above which torch's attention is faster
_QUERIES = 512  # of a long prompt that are computed together
_WRONG_STORE = {1: "a position beyond the model's", 2: "a slot outside the KV cache"}
_WRONG_ROWS = {1: "lengths that contradict each other", 2: "a block outside the KV cache"}


def qk_norm_rope_store(
    qkv: torch.Tensor,
    shape: AttentionShape,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> torch.Tensor:
    tokens, heads, kv_heads, dim = len(qkv), shape.num_heads, shape.num_kv_heads, shape.head_dim
    _check_caches(k_cache, v_cache, shape)
    if (
        qkv.shape[1] != (heads + 2 * kv_heads) * dim
        or cos_sin.shape[1] != dim
        or len(positions) != tokens
        or len(slot_mapping) != tokens
    ):
        raise ValueError(f"qkv {tuple(qkv.shape)} does not fit {shape} and {tokens} tokens")
    wrong = library().atom_rope_store(
        floats(qkv), _norm(q_norm, dim), _norm(k_norm, dim), eps, floats(cos_sin),
        integers(positions, torch.int64), floats(k_cache), floats(v_cache),
        integers(slot_mapping, torch.int64), tokens, heads, kv_heads, dim, len(cos_sin),
        k_cache.shape[0] * k_cache.shape[1], torch.get_num_threads(),
    )  # fmt: skip
    if wrong:
        raise IndexError(f"{_WRONG_STORE[wrong]} among the {tokens} tokens of this step")
    return qkv.view(tokens, -1, dim)[:, :heads]


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    shape: AttentionShape,
    metadata: AttentionMetaData,
) -> torch.Tensor:
    out = torch.empty(q.shape[0], shape.num_heads * shape.head_dim)
    rows = metadata.context_lens.shape[0]
    long = _long_prompts(metadata)
    first = 0
    for row in [*long, rows]:
        _attend(q, k_cache, v_cache, shape, metadata, first, row, out)
        if row < rows:
            _attend_long(q, k_cache, v_cache, shape, metadata, row, out)
        first = row + 1
    return out


def _long_prompts(metadata: AttentionMetaData) -> list[int]:
    """The rows that torch's attention takes."""
    if metadata.max_query_len * metadata.max_context_len <= _LONG_SCORES:
        return []
    scores = metadata.query_starts.diff() * metadata.context_lens
    is_long = scores > _LONG_SCORES
    is_long[: metadata.num_decodes] = False
    return is_long.nonzero().flatten().tolist()


def _attend(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    shape: AttentionShape,
    metadata: AttentionMetaData,
    first: int,
    end: int,
    out: torch.Tensor,
) -> None:
    """Rows first to end, by the kernel."""
    if first == end:
        return
    starts = metadata.query_starts[first : end + 1]
    contexts, tables = metadata.context_lens[first:end], metadata.block_tables[first:end]
    if q.stride(2) != 1 or q.stride(1) != shape.head_dim or q.dtype is not torch.float32:
        raise TypeError(f"queries of {q.dtype} with strides {q.stride()}")
    _check_caches(k_cache, v_cache, shape)
    wrong = library().atom_attention(
        q.data_ptr(), q.stride(0), floats(k_cache), floats(v_cache),
        integers(tables, torch.int32), integers(starts, torch.int32),
        integers(contexts, torch.int32), out.data_ptr(), len(q), end - first, k_cache.shape[0],
        k_cache.shape[1], tables.shape[1], shape.num_heads, shape.num_kv_heads, shape.head_dim,
        shape.scale, torch.get_num_threads(),
    )  # fmt: skip
    if wrong:
        raise IndexError(f"{_WRONG_ROWS[wrong]} among rows {first} to {end} of this step")


def _attend_long(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    shape: AttentionShape,
    metadata: AttentionMetaData,
    row: int,
    out: torch.Tensor,
) -> None:
    """One row's chunk of queries over its whole context, the last of which are its own."""
    start, end = metadata.query_starts[row : row + 2].tolist()
    length = int(metadata.context_lens[row])
    blocks = metadata.block_tables[row, : -(-length // k_cache.shape[1])]
    k, v = (
        cache.index_select(0, blocks).flatten(0, 1)[:length].transpose(0, 1)[None]
        for cache in (k_cache, v_cache)
    )  # [1, Hkv, length, D]
    own, result = q[start:end], out[start:end].view(end - start, shape.num_heads, shape.head_dim)
    history = length - (end - start)
    for first in range(0, end - start, _QUERIES):
        some = own[first : first + _QUERIES]
        last = history + first + len(some)
        at = torch.arange(last - len(some), last).unsqueeze(1)
        whole = history + first == 0  # nothing before: the mask is a plain triangle
        result[first : first + _QUERIES] = F.scaled_dot_product_attention(
            some.transpose(0, 1)[None],
            k[:, :, :last],
            v[:, :, :last],
            attn_mask=None if whole else torch.arange(last) <= at,
            is_causal=whole,
            scale=shape.scale,
            enable_gqa=True,
        )[0].transpose(0, 1)


def _check_caches(k_cache: torch.Tensor, v_cache: torch.Tensor, shape: AttentionShape) -> None:
    own = (shape.num_kv_heads, shape.head_dim)
    if k_cache.shape != v_cache.shape or k_cache.shape[2:] != own:
        raise ValueError(f"caches {tuple(k_cache.shape)}, {tuple(v_cache.shape)} for {shape}")


def _norm(weight: torch.Tensor | None, dim: int) -> int | None:
    if weight is not None and weight.numel() != dim:
        raise ValueError(f"norm of {weight.numel()} for heads of {dim}")
    return optional_floats(weight)
