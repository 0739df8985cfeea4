"""Paged attention on the CPU: decode rows in few batched calls, prompts in bounded pieces.

A row's tokens are gathered from the cache, as many of the newest as it sees. Beyond its end its
last token is gathered again, with a masked score, so K and V need no mask against stale cache data.
Query heads that share a KV head are queries of that head: K and V are never repeated. The indices
to gather are computed once per step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.backends.prompt_attention import attend_prompt, prompt_row, with_sinks
from atom.model_ops.quantised.cached_heads import gather_heads
from atom.model_ops.values import AttentionShape, LayerCache
from atom.sizing.mask_rule import CAUSAL
from atom.utils.forward_context import AttentionMetaData

# A further batched call costs about as much as attending over this many padded tokens.
_CALL_COST_TOKENS = 600


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decode rows of similar length. rows: [R] int64, or None for all of the step's rows; tokens:
    [R · L] int64, cache slots of each row's tokens, padded to the longest; mask: [R, 1, 1, L]."""

    rows: torch.Tensor | None
    tokens: torch.Tensor
    mask: torch.Tensor


def reasons_against(op: str, case: OpCase) -> tuple[str, ...]:
    if op == "paged_attention" and any(
        shape.softcap is not None for shape in case.layers.attention
    ):
        return ("its attention has no soft cap of scores",)
    return ()


def paged_attention(
    q: torch.Tensor, shape: AttentionShape, cache: LayerCache, step: AttentionMetaData
) -> torch.Tensor:
    decodes = step.num_decodes
    out = torch.empty(q.shape, dtype=q.dtype)
    if decodes:
        for group in decode_groups(step, cache.block_size, shape, q.dtype):
            _decode(group, q[:decodes], out[:decodes], cache, shape)
    for row in range(decodes, len(step.context_lens)):
        own, prompt = prompt_row(shape, step, row)
        attend_prompt(q[own], shape, cache, prompt, out[own])
    return out.flatten(1)


def length_groups(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Group rows that are padded to the longest of their group: a group is split if that saves more
    padding than a further call costs. lengths: descending; returns index ranges."""
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


def decode_groups(
    step: AttentionMetaData, block_size: int, shape: AttentionShape | None, dtype: torch.dtype
) -> list[DecodeGroup]:
    """Group the step's decodes that are computed together; `shape` None where every layer attends
    to all."""
    rule = CAUSAL if shape is None else shape.mask
    key = f"torch_cpu.decode_groups.{rule.kind}.{rule.size}.{dtype}"
    groups: list[DecodeGroup] | None = step.per_step.get(key)
    if groups is None:
        ends = step.context_lens[: step.num_decodes].numpy().astype(np.int64)
        tables = step.block_tables[: step.num_decodes].numpy()
        seen = ends
        if rule != CAUSAL:
            seen = np.array([rule.seen(end) for end in ends.tolist()], dtype=np.int64)
        order = np.argsort(-seen, kind="stable")
        ranges = length_groups(seen[order])
        groups = []
        for rows in ranges:
            chosen = order[rows] if len(ranges) > 1 else np.arange(len(ends))
            tokens = _padded_tokens(tables[chosen], ends[chosen], seen[chosen], block_size)
            mask = torch.zeros(tokens.shape, dtype=dtype)
            beyond = np.arange(tokens.shape[1]) >= seen[chosen][:, None]
            mask.masked_fill_(torch.from_numpy(beyond), -torch.inf)
            groups.append(
                DecodeGroup(
                    rows=torch.from_numpy(chosen) if len(ranges) > 1 else None,
                    tokens=torch.from_numpy(tokens.ravel()),
                    mask=mask[:, None, None],
                )
            )
        step.per_step[key] = groups
    return groups


def _padded_tokens(
    tables: NDArray[np.int32], ends: NDArray[np.int64], seen: NDArray[np.int64], block_size: int
) -> NDArray[np.int64]:
    """List [R, L] the cache slots of the newest `seen` tokens of each row that ends at `ends`."""
    position = np.minimum((ends - seen)[:, None] + np.arange(seen.max()), ends[:, None] - 1)
    block = np.take_along_axis(tables, position // block_size, axis=1).astype(np.int64)
    slots: NDArray[np.int64] = block * block_size + position % block_size
    return slots


def _decode(
    group: DecodeGroup,
    q: torch.Tensor,
    out: torch.Tensor,
    cache: LayerCache,
    shape: AttentionShape,
) -> None:
    queries = q if group.rows is None else q.index_select(0, group.rows)
    rows, longest = group.mask.shape[0], group.mask.shape[3]
    k, v = (
        tensor.view(rows, longest, shape.num_kv_heads, shape.head_dim).transpose(
            1, 2
        )  # [R, Hkv, L, D]
        for tensor in gather_heads(cache, group.tokens, q.dtype, slots=True)
    )
    grouped = queries.view(rows, shape.num_kv_heads, -1, shape.head_dim)  # [R, Hkv, Hq/Hkv, D]
    mask = group.mask
    if shape.sinks is not None:
        k, v, mask = with_sinks(k, v, mask, shape.sinks.view(shape.num_kv_heads, -1, 1))
    result = F.scaled_dot_product_attention(
        grouped, k, v, attn_mask=mask, scale=shape.scale
    ).reshape(queries.shape)
    if group.rows is None:
        out.copy_(result)
    else:
        out.index_copy_(0, group.rows, result)
