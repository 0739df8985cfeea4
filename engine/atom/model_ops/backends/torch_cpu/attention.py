"""Paged attention on the CPU: decode rows in few batched calls, prompts in bounded pieces.

A row's tokens are gathered from the cache; beyond its end its last token is gathered again, and
masked as a score, so that K and V need no mask against what the cache holds there. Query heads that
share a KV head are queries of that head: K and V are never repeated. Which tokens to gather is
worked out once per step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from atom.model_ops.backends.interface import AttentionShape
from atom.utils.forward_context import AttentionMetaData

# A further batched call costs about as much as attending over this many padded tokens.
_CALL_COST_TOKENS = 600
# Queries of a prompt that are computed together: bounds the mask, and skips what lies after them.
_PREFILL_QUERIES = 512


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decode rows of similar length. rows: [R] int64, or None for all of the step's rows; tokens:
    [R · L] int64, cache slots of each row's tokens, padded to the longest; mask: [R, 1, 1, L]."""

    rows: torch.Tensor | None
    tokens: torch.Tensor
    mask: torch.Tensor


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    shape: AttentionShape,
    metadata: AttentionMetaData,
) -> torch.Tensor:
    decodes, rows = metadata.num_decodes, metadata.context_lens.shape[0]
    out = torch.empty(q.shape, dtype=q.dtype)
    if decodes:
        for group in _decode_groups(metadata, k_cache.shape[1], q.dtype):
            _decode(group, q, out, k_cache, v_cache, shape, decodes)
    if decodes < rows:
        starts, lengths = metadata.query_starts.tolist(), metadata.context_lens.tolist()
        for row in range(decodes, rows):
            own = slice(starts[row], starts[row + 1])
            table = metadata.block_tables[row]
            _prefill(q[own], out[own], k_cache, v_cache, shape, table, lengths[row])
    return out.flatten(1)


def length_groups(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Rows in groups that are each padded to their longest: a group is cut in two where that
    spares more padding than a further call costs. lengths: descending; returns index ranges."""
    pending, groups = [np.arange(len(lengths))], []
    while pending:
        rows = pending.pop()
        own = lengths[rows]
        spared = (own[0] - own) * np.arange(len(rows), 0, -1)
        cut = int(spared.argmax())
        if spared[cut] > _CALL_COST_TOKENS:
            pending += [rows[cut:], rows[:cut]]
        else:
            groups.append(rows)
    return groups


def _decode_groups(
    metadata: AttentionMetaData, block_size: int, dtype: torch.dtype
) -> list[DecodeGroup]:
    key = f"torch_cpu.decode_groups.{dtype}"
    groups: list[DecodeGroup] | None = metadata.per_step.get(key)
    if groups is None:
        decodes = metadata.num_decodes
        lengths = metadata.context_lens[:decodes].numpy().astype(np.int64)
        order = np.argsort(-lengths, kind="stable")
        ranges = length_groups(lengths[order])
        groups = [
            _decode_group(
                metadata, None if len(ranges) == 1 else order[rows], lengths, block_size, dtype
            )
            for rows in ranges
        ]
        metadata.per_step[key] = groups
    return groups


def _decode_group(
    metadata: AttentionMetaData,
    rows: NDArray[np.int64] | None,
    lengths: NDArray[np.int64],
    block_size: int,
    dtype: torch.dtype,
) -> DecodeGroup:
    tables = metadata.block_tables[: metadata.num_decodes].numpy()
    if rows is not None:
        tables, lengths = tables[rows], lengths[rows]
    at = np.arange(lengths.max())
    own = np.minimum(at, lengths[:, None] - 1)  # [R, L] positions
    block = np.take_along_axis(tables, own // block_size, axis=1).astype(np.int64)
    beyond = torch.from_numpy(at >= lengths[:, None])
    mask = torch.zeros(beyond.shape, dtype=dtype).masked_fill_(beyond, -torch.inf)
    return DecodeGroup(
        rows=None if rows is None else torch.from_numpy(rows),
        tokens=torch.from_numpy((block * block_size + own % block_size).ravel()),
        mask=mask[:, None, None],
    )


def _decode(
    group: DecodeGroup,
    q: torch.Tensor,
    out: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    shape: AttentionShape,
    decodes: int,
) -> None:
    queries = q[:decodes] if group.rows is None else q.index_select(0, group.rows)
    rows, longest = group.mask.shape[0], group.mask.shape[3]
    k, v = (
        cache.flatten(0, 1)
        .index_select(0, group.tokens)
        .to(q.dtype)
        .view(rows, longest, shape.num_kv_heads, shape.head_dim)
        .transpose(1, 2)  # [R, Hkv, L, D]
        for cache in (k_cache, v_cache)
    )
    grouped = queries.view(rows, shape.num_kv_heads, -1, shape.head_dim)  # [R, Hkv, Hq/Hkv, D]
    result = F.scaled_dot_product_attention(
        grouped, k, v, attn_mask=group.mask, scale=shape.scale
    ).reshape(queries.shape)
    if group.rows is None:
        out[:decodes] = result
    else:
        out.index_copy_(0, group.rows, result)


def _prefill(
    q: torch.Tensor,
    out: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    shape: AttentionShape,
    table: torch.Tensor,
    length: int,
) -> None:
    """One row's chunk of queries over its whole context, the last of which are its own."""
    blocks = table[: -(-length // k_cache.shape[1])]
    k, v = (
        cache.index_select(0, blocks).flatten(0, 1)[:length].transpose(0, 1).to(q.dtype)[None]
        for cache in (k_cache, v_cache)
    )  # [1, Hkv, length, D]
    first = length - q.shape[0]  # position of the first query
    for start in range(0, q.shape[0], _PREFILL_QUERIES):
        some = q[start : start + _PREFILL_QUERIES]
        end = first + start + some.shape[0]
        at = torch.arange(first + start, end).unsqueeze(1)
        whole = first + start == 0  # nothing before these queries: the mask is a plain triangle
        out[start : start + _PREFILL_QUERIES] = F.scaled_dot_product_attention(
            some.transpose(0, 1)[None],
            k[:, :, :end],
            v[:, :, :end],
            attn_mask=None if whole else torch.arange(end) <= at,
            is_causal=whole,
            scale=shape.scale,
            enable_gqa=True,
        )[0].transpose(0, 1)
