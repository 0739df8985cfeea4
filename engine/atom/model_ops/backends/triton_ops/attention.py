"""Attention of a step: decodes by one kernel, ragged rows by another, long prompts by a library.

Supported: head sizes that are powers of two from 16 to 256, any number of query heads per KV head,
any block size that is a power of two.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from atom.errors import ConfigError
from atom.model_ops.backends.interface import AttentionShape
from atom.model_ops.backends.triton_ops.decode_attention import (
    RotaryInputs,
    append_attention,
    decode_attention,
)
from atom.model_ops.backends.triton_ops.dense_attention import dense_attention
from atom.model_ops.backends.triton_ops.prefill_attention import RowSpan, prefill_attention
from atom.model_ops.backends.triton_ops.rope_store import qk_norm_rope_store
from atom.utils.forward_context import AttentionMetaData

_HEAD_DIMS = (16, 32, 64, 128, 256)


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    shape: AttentionShape,
    metadata: AttentionMetaData,
) -> torch.Tensor:
    _check(shape, k_cache.shape[1])
    out = torch.empty_like(q)
    decodes, rows = metadata.num_decodes, metadata.context_lens.shape[0]
    if decodes:
        decode_attention(q[:decodes], k_cache, v_cache, shape, metadata, out[:decodes])
    if decodes < rows:
        span = RowSpan(decodes, rows - decodes, q.shape[0] - decodes)
        _prefill(q, k_cache, v_cache, shape, metadata, span, out)
    return out.flatten(1)


def attention(
    qkv: torch.Tensor,
    shape: AttentionShape,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    metadata: AttentionMetaData,
) -> torch.Tensor:
    _check(shape, k_cache.shape[1])
    decodes = metadata.num_decodes
    out = torch.empty(
        (qkv.shape[0], shape.num_heads, shape.head_dim), dtype=qkv.dtype, device=qkv.device
    )
    if decodes:
        rotary = RotaryInputs(q_norm, k_norm, eps, cos_sin, positions)
        append_attention(qkv[:decodes], rotary, k_cache, v_cache, shape, metadata, out[:decodes])
    if decodes < metadata.context_lens.shape[0]:
        q = qk_norm_rope_store(
            qkv, shape, q_norm, k_norm, eps, cos_sin, positions, k_cache, v_cache,
            metadata.slot_mapping, first_token=decodes, keep_keys=bool(metadata.long_prompts),
        )  # fmt: skip
        for group in metadata.long_prompts:
            result = dense_attention(q, qkv, shape, group)
            if result.shape == out.shape:  # the whole step: nothing to copy together
                return result.flatten(1)
            out[group.first_token : group.first_token + len(result)] = result
            if group.leading < group.length:
                rest = group.length - group.leading
                span = RowSpan(group.first_row, 1, rest, skipped=group.leading)
                _prefill(q, k_cache, v_cache, shape, metadata, span, out)
        for span in _spans_between_groups(metadata, qkv.shape[0]):
            _prefill(q, k_cache, v_cache, shape, metadata, span, out)
    return out.flatten(1)


def _spans_between_groups(metadata: AttentionMetaData, tokens: int) -> Iterator[RowSpan]:
    """The rows that are neither decodes nor long prompts."""
    row = token = metadata.num_decodes
    for group in metadata.long_prompts:
        if group.first_row > row:
            yield RowSpan(row, group.first_row - row, group.first_token - token)
        row, token = group.first_row + group.rows, group.first_token + group.rows * group.length
    rows = metadata.context_lens.shape[0]
    if rows > row:
        yield RowSpan(row, rows - row, tokens - token)


def _prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    shape: AttentionShape,
    metadata: AttentionMetaData,
    span: RowSpan,
    out: torch.Tensor,
) -> None:
    prefill_attention(
        q, k_cache, v_cache, shape, metadata.block_tables, metadata.context_lens,
        metadata.query_starts, span, out,
    )  # fmt: skip


def _check(shape: AttentionShape, block_size: int) -> None:
    if shape.head_dim not in _HEAD_DIMS:
        raise ConfigError(
            f"the triton backend computes attention for head sizes "
            f"{', '.join(map(str, _HEAD_DIMS))}, not {shape.head_dim}; use "
            f"--op-backend paged_attention=torch_ref"
        )
    if block_size & (block_size - 1):
        raise ConfigError(
            f"the triton backend needs a block size that is a power of two, not {block_size}; "
            f"set --block-size 16"
        )
