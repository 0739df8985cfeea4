"""Random inputs of operations, and the comparison with the reference.

Cache slots that no row owns hold NaN, so that reading one shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from atom.model_ops.backends import load_backend
from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.self_check.agreement import TOLERANCE, row_errors
from atom.model_ops.slots import SlotSampling, SlotTensors
from atom.model_ops.values import AttentionShape, LayerCache
from atom.sizing.mask_rule import CAUSAL, MaskRule
from atom.utils.forward_context import AttentionMetaData, DecodeRuns

__all__ = ["load_backend"]

FLOAT32 = OpCase(dtype=torch.float32, kv_dtype=torch.float32)
BFLOAT16 = OpCase(dtype=torch.bfloat16, kv_dtype=torch.bfloat16)


def assert_rows_agree(
    out: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, slack: float = 1.0
) -> None:
    """‖out - expected‖ / ‖expected‖ of every row (the first dimension), so that one wrong row is
    not diluted by many right ones."""
    assert out.shape == expected.shape
    assert out.isfinite().all(), "result has NaN or infinity"
    error = row_errors(out, expected)
    worst = int(error.argmax())
    limit = TOLERANCE[dtype] * slack
    assert error[worst] <= limit, f"row {worst} is off by {error[worst]:.2e}, limit {limit:.1e}"


def poison(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
    """Leave NaN in the memory that the next allocation of this size is likely to get."""
    torch.full(tuple(shape), torch.nan, dtype=dtype, device=device)


@dataclass(frozen=True)
class PagedCase:
    """q [T, Hq, D] and a paged cache filled for rows of (history, queries) tokens; decodes first.
    A row of no queries and no history is padding of a decode batch: one query, context 0."""

    q: torch.Tensor
    shape: AttentionShape
    cache: LayerCache
    step: AttentionMetaData

    @property
    def arguments(self) -> tuple[torch.Tensor, AttentionShape, LayerCache, AttentionMetaData]:
        """Of `paged_attention`."""
        return self.q.clone(), self.shape, self.cache, self.step

    @property
    def doubled(self) -> tuple[torch.Tensor, AttentionShape, LayerCache, AttentionMetaData]:
        """For the reference, whose masks do not hold against NaN: slots of no row hold zero."""
        return self.q.double(), self.shape, self.clean_cache(torch.float64), self.step

    def clean_cache(self, dtype: torch.dtype) -> LayerCache:
        """A copy whose slots of no row hold zero."""
        return LayerCache(
            self.cache.k.nan_to_num(0.0).to(dtype), self.cache.v.nan_to_num(0.0).to(dtype)
        )


def paged_case(
    contexts_and_queries: Sequence[tuple[int, int]],
    *,
    device: torch.device,
    dtype: torch.dtype,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 32,
    block_size: int = 16,
    max_context: int | None = None,
    mask: MaskRule = CAUSAL,
    softcap: float | None = None,
    sinks: bool = False,
    seed: int = 0,
) -> PagedCase:
    """Rows of (context, queries), those of one query first; their blocks are scattered. Blocks that
    left the window of every query are other rows' by now: their entries of the table lead to NaN.
    """
    draw = torch.Generator().manual_seed(seed)
    contexts = [context for context, _ in contexts_and_queries]
    counts = [queries for _, queries in contexts_and_queries]
    blocks_of = [-(-context // block_size) for context in contexts]
    total = sum(blocks_of) + 3
    order = torch.randperm(total, generator=draw).tolist()
    unowned = order.pop()
    longest = max(max_context or 0, *contexts)
    tables = torch.zeros((len(contexts), max(1, -(-longest // block_size))), dtype=torch.int32)
    caches = [
        torch.full((total, block_size, heads[1], head_dim), torch.nan, dtype=dtype)
        for _ in range(2)
    ]
    for row, (context, blocks) in enumerate(zip(contexts, blocks_of, strict=True)):
        own = [order.pop() for _ in range(blocks)]
        if mask != CAUSAL:
            first = context - counts[row] + 1
            reached = max(0, first - mask.seen(first)) // block_size
            own[:reached] = [unowned] * reached
        tables[row, :blocks] = torch.tensor(own, dtype=torch.int32)
        for cache in caches:
            for index, block in enumerate(own):
                if block == unowned:
                    continue
                used = min(block_size, context - index * block_size)
                cache[block, :used] = torch.randn((used, heads[1], head_dim), generator=draw).to(
                    dtype
                )
    starts = [0, *itertools.accumulate(counts)]
    q = torch.randn((starts[-1], heads[0], head_dim), generator=draw).to(dtype)
    decodes = next((i for i, count in enumerate(counts) if count > 1), len(counts))
    step = AttentionMetaData(
        query_starts=torch.tensor(starts, dtype=torch.int32, device=device),
        context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
        block_tables=tables.to(device),
        slot_mapping=torch.empty(0, dtype=torch.int64, device=device),
        num_decodes=decodes,
        max_query_len=max(counts),
        max_context_len=longest,
    )
    return PagedCase(
        q=q.to(device),
        shape=AttentionShape(
            heads[0],
            heads[1],
            head_dim,
            head_dim**-0.5,
            mask,
            softcap,
            has_sinks=sinks,
            sinks=torch.randn(heads[0], generator=draw).to(device) * 2 if sinks else None,
        ),
        cache=LayerCache(caches[0].to(device), caches[1].to(device)),
        step=step,
    )


def in_runs(
    case: PagedCase, longest: int, *, newest_first: bool = False, padding: int = 0
) -> PagedCase:
    """The case's queries as decodes, a run of each row; padding: rows of context 0 behind them, and
    as many empty runs. A row's table leads nowhere behind its own context."""
    step, device = case.step, case.q.device
    counts = step.query_starts.diff().long()
    row = torch.repeat_interleave(torch.arange(len(counts), device=device), counts)
    offset = torch.arange(len(row), device=device) - step.query_starts[row]
    left = counts[row] - 1 - offset
    if newest_first:
        left = offset
    contexts = step.context_lens[row] - left
    tables = step.block_tables[row]
    block_size = case.cache.block_size
    columns = torch.arange(tables.shape[1], device=device)
    tables = torch.where(columns < -(-contexts[:, None] // block_size), tables, 0)
    nothing = contexts.new_zeros(padding)
    starts = torch.cat((step.query_starts, step.query_starts[-1:].expand(padding)))
    unread = case.q.new_full((padding, *case.q.shape[1:]), torch.nan)
    rows = len(row) + padding
    return replace(
        case,
        q=torch.cat((case.q, unread)),
        step=replace(
            step,
            query_starts=torch.arange(rows + 1, dtype=torch.int32, device=device),
            context_lens=torch.cat((contexts, nothing)).to(torch.int32),
            block_tables=torch.cat((tables, tables.new_zeros(padding, tables.shape[1]))),
            num_decodes=rows,
            max_query_len=1,
            runs=DecodeRuns(starts, longest),
        ),
    )


def padded_step(step: AttentionMetaData, rows: int, tokens: int) -> AttentionMetaData:
    """The step as a graph has it that is larger: behind its rows some without tokens, and behind
    its tokens some without a row."""
    starts, tables = step.query_starts, step.block_tables
    return replace(
        step,
        query_starts=torch.cat((starts, starts[-1:].expand(rows))),
        context_lens=torch.cat((step.context_lens, step.context_lens.new_zeros(rows))),
        block_tables=torch.cat((tables, tables.new_zeros(rows, tables.shape[1]))),
        max_query_len=step.max_query_len + tokens,
        has_padding=True,
    )


def slot_tensors(
    slots: int, max_blocks: int, device: torch.device, groups: int = 1, seed: int = 0
) -> SlotTensors:
    """Random state of `slots` sequences and the padding slot; max_blocks: of each group."""
    draw = torch.Generator().manual_seed(seed)

    def integers(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=draw)

    return SlotTensors(
        last_token=integers(1000, slots + 1).to(device),
        num_computed=integers(max_blocks * 16 - 1, slots + 1).to(device),
        block_tables=integers(500, slots + 1, groups * max_blocks).to(torch.int32).to(device),
        sampling=SlotSampling(
            temperature=torch.rand(slots + 1, generator=draw).to(device),
            seed=integers(2**62, slots + 1).to(device),
            top_k=integers(50, slots + 1).to(device),
            top_p=torch.rand(slots + 1, generator=draw).to(device),
            min_p=torch.rand(slots + 1, generator=draw).to(device),
        ),
        num_groups=groups,
    )
