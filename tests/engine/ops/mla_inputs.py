"""Random inputs of latent attention: a paged cache of entries, filled as far as contexts reach.

Cache slots that no row owns hold NaN, so that reading one shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from atom.model_ops.values import LatentCache, LatentShape, LatentTokens, LinearWeight
from atom.utils.forward_context import AttentionMetaData

Arguments = tuple[LatentTokens, LatentShape, LinearWeight, LatentCache, AttentionMetaData]

SMALL = LatentShape(num_heads=4, nope_dim=16, rope_dim=8, kv_rank=32, value_dim=16, scale=24**-0.5)
# No size is a power of two, and values are wider than queries.
ODD = LatentShape(num_heads=3, nope_dim=10, rope_dim=6, kv_rank=24, value_dim=20, scale=0.3)
REAL = LatentShape(
    num_heads=16, nope_dim=128, rope_dim=64, kv_rank=512, value_dim=128, scale=192**-0.5
)


@dataclass(frozen=True)
class LatentCase:
    """Rows of (context, queries), decodes first; one of context 0 is padding of a decode batch."""

    tokens: LatentTokens
    shape: LatentShape
    up: LinearWeight
    cache: LatentCache
    step: AttentionMetaData

    @property
    def arguments(self) -> Arguments:
        """Of `mla_attention`."""
        tokens = LatentTokens(self.tokens.q.clone(), self.tokens.entries)
        return tokens, self.shape, self.up, self.cache, self.step

    @property
    def doubled(self) -> Arguments:
        """Widen the case to float64, with zeros in slots of no row."""
        tokens = LatentTokens(self.tokens.q.double(), self.tokens.entries.double())
        cache = LatentCache(self.cache.entries.nan_to_num(0.0).double())
        return tokens, self.shape, LinearWeight(self.up.data.double()), cache, self.step


def latent_case(
    contexts_and_queries: Sequence[tuple[int, int]],
    *,
    device: torch.device,
    dtype: torch.dtype,
    shape: LatentShape = SMALL,
    block_size: int = 16,
    max_context: int | None = None,
    seed: int = 0,
) -> LatentCase:
    """Rows whose blocks are scattered; q and entries are parts of a wider tensor, as a projection
    gives it, and what they hold is stored."""
    draw = torch.Generator().manual_seed(seed)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=draw)

    contexts = [context for context, _ in contexts_and_queries]
    counts = [queries for _, queries in contexts_and_queries]
    longest = max(max_context or 0, *contexts)
    blocks_of = [-(-context // block_size) for context in contexts]
    total = sum(blocks_of) + 2
    order = torch.randperm(total, generator=draw).tolist()
    tables = torch.zeros((len(contexts), max(1, -(-longest // block_size))), dtype=torch.int32)
    entries = torch.full((total, block_size, shape.entry_dim), torch.nan)
    newest: list[torch.Tensor] = []
    for row, (context, blocks) in enumerate(zip(contexts, blocks_of, strict=True)):
        own = random(max(context, counts[row]), shape.entry_dim)
        newest.append(own[-counts[row] :])
        for index in range(blocks):
            tables[row, index] = order.pop()
            some = own[index * block_size : min((index + 1) * block_size, context)]
            entries[tables[row, index], : len(some)] = some
    starts = [0, *itertools.accumulate(counts)]
    width = shape.num_heads * shape.head_dim
    projected = torch.cat((random(starts[-1], width), torch.cat(newest)), dim=1)
    q, own = projected.to(device, dtype).split([width, shape.entry_dim], dim=1)
    step = AttentionMetaData(
        query_starts=torch.tensor(starts, dtype=torch.int32, device=device),
        context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
        block_tables=tables.to(device),
        slot_mapping=torch.empty(0, dtype=torch.int64, device=device),
        num_decodes=next((i for i, count in enumerate(counts) if count > 1), len(counts)),
        max_query_len=max(counts),
        max_context_len=longest,
    )
    matrix = random(shape.num_heads * (shape.nope_dim + shape.value_dim), shape.kv_rank)
    return LatentCase(
        tokens=LatentTokens(q.unflatten(1, (shape.num_heads, -1)), own),
        shape=shape,
        up=LinearWeight((matrix * shape.kv_rank**-0.5).to(device, dtype)),
        cache=LatentCache(entries.to(device, dtype)),
        step=step,
    )
