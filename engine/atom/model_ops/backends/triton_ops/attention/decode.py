# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Attention of one query per row over the paged cache, which already holds the newest token.

A program takes one row, one KV head and one split of the row's context (split_kv.py); the query
heads of the group share its loads, padded to the tensor core's 16 rows. A row of context 0 (a
graph's padding) yields zeros. With a window, splits divide the tokens that are in it. Heads of a
row run side by side and rows in their order: with the longest row first, the short ones fill the
gaps at the end. `decode_append.py` is this with norm, rotation and the write of the newest key and
value in front.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.attention.paged_tiles import (
    LayerStep,
    cap_scores,
    head_elements,
    load_blocks,
    real_elements,
    score_constants,
    score_tile,
    softmax_step,
)
from atom.model_ops.backends.triton_ops.attention.split_kv import (
    SplitParts,
    Splits,
    choose_splits,
    combine_splits,
    own_split,
    store_split,
)
from atom.model_ops.backends.triton_ops.compile.tuning import DecodeConfig, decode_config
from atom.model_ops.backends.triton_ops.launch import (
    cache_pointers,
    compute_units,
    group_lanes,
    head_lanes,
)


@triton.jit
def attend_split(
    q, cache, table_ptr, head, start, low, end, scale, running_max, running_sum, acc,
    HKV: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
    SOFTCAP: tl.constexpr,
):  # fmt: skip
    """Fold the cached tokens [start, end) of one row into the softmax of its query heads q."""
    LANES: tl.constexpr = q.shape[1]
    element, real = head_elements(D, LANES), real_elements(D, LANES)
    block = load_blocks(table_ptr, start, low, end, BLOCK_SIZE, BLOCK_N, False)
    # All but the last tile are whole, yet masked: a second loop would double the code for one
    # compare.
    for first in range(start, end, BLOCK_N):
        inside = first + tl.arange(0, BLOCK_N) < end
        scores, value, value_scale = score_tile(
            q, cache, block, first, head, element, real, inside, HKV, D, BLOCK_SIZE, BLOCK_N, True
        )
        # The next tile's block ids, a turn ahead: see `load_blocks`.
        block = load_blocks(table_ptr, first + BLOCK_N, low, end, BLOCK_SIZE, BLOCK_N, False)
        scores = cap_scores(scores, scale, SOFTCAP)
        scores = tl.where(inside[None, :], scores, float("-inf"))
        running_max, running_sum, acc = softmax_step(
            scores, value, value_scale, scale, running_max, running_sum, acc, False,
            cache[2] is not None,
        )  # fmt: skip
    return running_max, running_sum, acc


@triton.jit(do_not_specialize=["table_stride", "least", "splits"])
def _decode_kernel(
    q_ptr, cache, tables_ptr, contexts_ptr, out_ptr, partial_ptr, lse_ptr, sinks_ptr,
    table_stride, least, splits, scale,
    GROUP: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr, IS_SPLIT: tl.constexpr, WINDOW: tl.constexpr, IN_CHUNKS: tl.constexpr,
    SOFTCAP: tl.constexpr,
):  # fmt: skip
    """q_ptr: [R, Hq, D]. How many splits there are is no constant: it follows from the number of
    rows, and a step may have any."""
    LANES: tl.constexpr = head_lanes(D)
    GROUP_PADDED: tl.constexpr = group_lanes(GROUP)
    # Heads are the fastest axis: the programs of one row run together and share its block table.
    head, row, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(contexts_ptr + row)
    low, start, end, length = own_split(
        context, split, least, splits, BLOCK_N, IS_SPLIT, WINDOW, IN_CHUNKS
    )
    if IS_SPLIT:  # noqa: SIM102 - what the compiler knows, and what a program does
        # The grid has splits for the longest row; split 0 stays, to write a padding row's zeros.
        if (start >= context) & (split > 0):
            return
    member = tl.arange(0, GROUP_PADDED)
    element = head_elements(D, LANES)
    # Lanes that pad a group or a head load zeros and do not store.
    stored_lanes = (member < GROUP)[:, None]
    if D != LANES:
        stored_lanes = stored_lanes & real_elements(D, LANES)[None, :]
    query_head = row.to(tl.int64) * (HKV * GROUP) + head * GROUP + member
    table_ptr = tables_ptr + row.to(tl.int64) * table_stride
    running_max = tl.full([GROUP_PADDED], float("-inf"), tl.float32)
    running_sum = tl.zeros([GROUP_PADDED], tl.float32)
    acc = tl.zeros([GROUP_PADDED, LANES], tl.float32)
    query_at = q_ptr + query_head[:, None] * D + element[None, :]
    q = tl.load(query_at, mask=stored_lanes, other=0.0)
    running_max, running_sum, acc = attend_split(
        q, cache, table_ptr, head, start, low, end, scale, running_max, running_sum, acc,
        HKV, D, BLOCK_SIZE, BLOCK_N, SOFTCAP,
    )  # fmt: skip
    store_split(
        out_ptr, partial_ptr, lse_ptr, sinks_ptr, query_head, head, context - low, split, length,
        splits, running_max, running_sum, acc, GROUP, D,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class DecodeLaunch:
    """The launch of a layer's decodes. grid: KV heads, rows, splits; constants: of the kernel,
    except its own; options: Triton's."""

    splits: Splits
    grid: tuple[int, int, int]
    partial: torch.Tensor
    lse: torch.Tensor
    constants: dict[str, int | float | bool]
    options: dict[str, int]

    def combine(self, layer: LayerStep, out: torch.Tensor) -> None:
        """Combine the partial results of the rows' splits."""
        if self.splits.count > 1:
            shape, block_n = layer.shape, int(self.constants["BLOCK_N"])
            parts = SplitParts(self.partial, self.lse, block_n, shape.mask, shape.sinks)
            combine_splits(parts, layer.step.context_lens, out, self.splits)


def decode_launch(
    layer: LayerStep, out: torch.Tensor, element_bytes: int, config: DecodeConfig | None
) -> DecodeLaunch:
    """Choose tile and splits for a step's first rows, as many as out [R, Hq, D] has."""
    shape, cache, step = layer.shape, layer.cache, layer.step
    rows, heads, dim = out.shape
    kv_heads = shape.num_kv_heads
    config = config or decode_config(out.device, head_lanes(dim), element_bytes, rows)
    splits = choose_splits(
        rows, kv_heads, shape.mask.most_seen(step.max_context_len), compute_units(out.device),
        config, even=step.even_contexts,
    )  # fmt: skip
    partial = lse = out
    if not splits.whole:
        size = rows * heads * splits.count
        partial = torch.empty((size, dim), dtype=torch.float32, device=out.device)
        lse = torch.empty((size,), dtype=torch.float32, device=out.device)
    constants = {
        "GROUP": heads // kv_heads, "HKV": kv_heads, "D": dim, "BLOCK_SIZE": cache.block_size,
        "BLOCK_N": config.block_n, "IS_SPLIT": not splits.whole, **score_constants(shape),
    }  # fmt: skip
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    return DecodeLaunch(splits, (kv_heads, rows, splits.count), partial, lse, constants, options)


def decode_attention(
    q: torch.Tensor, layer: LayerStep, out: torch.Tensor, config: DecodeConfig | None = None
) -> None:
    """Attend with a step's first rows, as many as q and out [R, Hq, D] have; the cache holds the
    newest token of each."""
    launch = decode_launch(layer, out, q.element_size(), config)
    shape, step, splits = layer.shape, layer.step, launch.splits
    _decode_kernel[launch.grid](
        q, cache_pointers(layer.cache), step.block_tables, step.context_lens, out, launch.partial,
        launch.lse, shape.sinks, step.block_tables.stride(0), splits.least, splits.count,
        shape.scale * math.log2(math.e), **launch.constants, **launch.options,
    )  # fmt: skip
    launch.combine(layer, out)
