"""Batches over a full paged cache for measuring attention: random tables, real sizes.

Used by tune.py and the kernel benchmark; bfloat16, on the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from atom.model_ops.backends.interface import AttentionShape
from atom.utils.forward_context import AttentionMetaData


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """caches: several (k, v) pairs to rotate, so that no call finds its own in the card's cache."""

    q: torch.Tensor
    caches: list[tuple[torch.Tensor, torch.Tensor]]
    shape: AttentionShape
    metadata: AttentionMetaData
    contexts: list[int]
    queries: list[int]

    @property
    def kv_bytes(self) -> int:
        """Keys and values that one call must read."""
        return 4 * self.shape.num_kv_heads * self.shape.head_dim * sum(self.contexts)

    @property
    def flops(self) -> int:
        """Of both products, causal: query i of n sees context - n + i + 1 tokens."""
        seen = sum(
            n * context - n * (n - 1) // 2
            for context, n in zip(self.contexts, self.queries, strict=True)
        )
        return 4 * self.shape.num_heads * self.shape.head_dim * seen


def attention_case(
    contexts: Sequence[int],
    queries: Sequence[int],
    *,
    heads: tuple[int, int],
    head_dim: int = 128,
    block_size: int = 16,
    max_context: int | None = None,
    copies: int = 1,
    contiguous: bool = False,
) -> AttentionCase:
    """Rows of one query come first. contiguous: tables of ascending blocks instead of random."""
    device = torch.device("cuda")
    counts = [-(-context // block_size) for context in contexts]
    total = sum(counts)
    order = torch.arange(total) if contiguous else torch.randperm(total)
    longest = max(max_context or 0, *contexts)
    tables = torch.zeros(len(contexts), -(-longest // block_size), dtype=torch.int32)
    at = 0
    for row, count in enumerate(counts):
        tables[row, :count] = order[at : at + count]
        at += count
    starts = torch.zeros(len(contexts) + 1, dtype=torch.int32)
    starts[1:] = torch.tensor(queries).cumsum(0)
    tokens = int(starts[-1])

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, dtype=torch.bfloat16, device=device)

    size = (total, block_size, heads[1], head_dim)
    return AttentionCase(
        q=random(tokens, heads[0], head_dim),
        caches=[(random(*size), random(*size)) for _ in range(copies)],
        shape=AttentionShape(heads[0], heads[1], head_dim, head_dim**-0.5),
        metadata=AttentionMetaData(
            query_starts=starts.to(device),
            context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
            block_tables=tables.to(device),
            slot_mapping=torch.empty(0, dtype=torch.int64, device=device),
            num_decodes=sum(count == 1 for count in queries),
            max_query_len=max(queries),
            max_context_len=longest,
        ),
        contexts=list(contexts),
        queries=list(queries),
    )
