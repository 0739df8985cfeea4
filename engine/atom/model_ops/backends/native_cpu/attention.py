"""Rotation, KV cache store and paged attention on the CPU's kernels.

The kernel reads the cache in place, query by query: best for decodes and short prompts. Long
prompts go to torch's attention (prompt_attention.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom.model_ops.backends.native_cpu.library import (
    floats,
    integers,
    library,
)
from atom.model_ops.backends.prompt_attention import attend_prompt, prompt_row
from atom.model_ops.values import AttentionShape, LayerCache, NormWeight, Rotary
from atom.sizing.mask_rule import MaskKind
from atom.utils.forward_context import AttentionMetaData

_LONG_SCORES = 2**16  # queries times context of a prompt, above which torch's attention is faster
_WRONG_STORE = {1: "a position beyond the model's", 2: "a slot outside the KV cache"}
_WRONG_ROWS = {1: "lengths that contradict each other", 2: "a block outside the KV cache"}


def qk_norm_rope_store(
    qkv: torch.Tensor,
    shape: AttentionShape,
    rotary: Rotary,
    cache: LayerCache,
    slot_mapping: torch.Tensor,
) -> torch.Tensor:
    tokens, heads, kv_heads, dim = len(qkv), shape.num_heads, shape.num_kv_heads, shape.head_dim
    _check_cache(cache, shape)
    if (
        qkv.shape[1] != (heads + 2 * kv_heads) * dim
        or rotary.cos_sin.shape[1] != dim
        or len(rotary.positions) != tokens
        or len(slot_mapping) != tokens
    ):
        raise ValueError(f"qkv {tuple(qkv.shape)} does not fit {shape} and {tokens} tokens")
    wrong = library().atom_rope_store(
        floats(qkv), _norm(rotary.q_norm, dim), _norm(rotary.k_norm, dim),
        0.0 if rotary.q_norm is None else rotary.q_norm.eps, floats(rotary.cos_sin),
        integers(rotary.positions, torch.int64), floats(cache.k), floats(cache.v),
        integers(slot_mapping, torch.int64), tokens, heads, kv_heads, dim, len(rotary.cos_sin),
        cache.num_blocks * cache.block_size, torch.get_num_threads(),
    )  # fmt: skip
    if wrong:
        raise IndexError(f"{_WRONG_STORE[wrong]} among the {tokens} tokens of this step")
    return qkv.view(tokens, -1, dim)[:, :heads]


def attend_query_by_query(
    q: torch.Tensor, shape: AttentionShape, cache: LayerCache, step: AttentionMetaData
) -> torch.Tensor:
    """Compute `paged_attention` with the kernel alone, for prompts of any length: a query's result
    depends on its context and on no other query."""
    out = _empty_result(q, shape, cache)
    _attend(q, shape, cache, _Rows(step, 0, step.context_lens.shape[0]), out)
    return out


def paged_attention(
    q: torch.Tensor, shape: AttentionShape, cache: LayerCache, step: AttentionMetaData
) -> torch.Tensor:
    out = _empty_result(q, shape, cache)
    rows, first = step.context_lens.shape[0], 0
    for row in [*_rows_by_torch(shape, step), rows]:
        if first < row:
            _attend(q, shape, cache, _Rows(step, first, row), out)
        if row < rows:
            own, prompt = prompt_row(shape, step, row)
            attend_prompt(q[own], shape, cache, prompt, out[own].unflatten(1, q.shape[1:]))
        first = row + 1
    return out


def _empty_result(q: torch.Tensor, shape: AttentionShape, cache: LayerCache) -> torch.Tensor:
    _check_cache(cache, shape)
    if q.stride(2) != 1 or q.stride(1) != shape.head_dim or q.dtype is not torch.float32:
        raise TypeError(f"queries of {q.dtype} with strides {q.stride()}")
    return torch.empty(q.shape[0], shape.num_heads * shape.head_dim)


def _rows_by_torch(shape: AttentionShape, step: AttentionMetaData) -> list[int]:
    """Return the rows that torch's attention computes: long prompts, and all prompts if the layer's
    queries see later tokens."""
    if shape.last_seen(step) is not None:
        return list(range(step.num_decodes, len(step.context_lens)))
    if step.max_query_len * step.max_context_len <= _LONG_SCORES:
        return []
    scores = step.query_starts.diff() * step.context_lens
    is_long = scores > _LONG_SCORES
    is_long[: step.num_decodes] = False
    return is_long.nonzero().flatten().tolist()


@dataclass(frozen=True, slots=True)
class _Rows:
    """Neighbouring rows of a step, first to end."""

    step: AttentionMetaData
    first: int
    end: int


def _attend(
    q: torch.Tensor, shape: AttentionShape, cache: LayerCache, rows: _Rows, out: torch.Tensor
) -> None:
    """Attend with the rows, by the kernel."""
    step, first, end = rows.step, rows.first, rows.end
    tables = step.block_tables[first:end]
    wrong = library().atom_attention(
        q.data_ptr(), q.stride(0), floats(cache.k), floats(cache.v),
        integers(tables, torch.int32), integers(step.query_starts[first : end + 1], torch.int32),
        integers(step.context_lens[first:end], torch.int32), out.data_ptr(), len(q), end - first,
        cache.num_blocks, cache.block_size, tables.shape[1], shape.num_heads, shape.num_kv_heads,
        shape.head_dim, shape.mask.size, shape.mask.kind is MaskKind.CHUNKED, shape.scale,
        torch.get_num_threads(),
    )  # fmt: skip
    if wrong:
        raise IndexError(f"{_WRONG_ROWS[wrong]} among rows {first} to {end} of this step")


def _check_cache(cache: LayerCache, shape: AttentionShape) -> None:
    own = (shape.num_kv_heads, shape.head_dim)
    if cache.k.shape != cache.v.shape or cache.k.shape[2:] != own:
        raise ValueError(f"caches {tuple(cache.k.shape)}, {tuple(cache.v.shape)} for {shape}")


def _norm(norm: NormWeight | None, dim: int) -> int | None:
    if norm is None:
        return None
    if norm.weight.numel() != dim:
        raise ValueError(f"norm of {norm.weight.numel()} for heads of {dim}")
    return floats(norm.weight)
