"""Batches over a full paged cache for measuring attention: random tables, real sizes.

Used by `tune` and the kernel benchmark; bfloat16, on the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from atom.model_ops.values import AttentionShape, LayerCache, NormWeight, Rotary
from atom.utils.forward_context import AttentionMetaData, PromptPlan
from atom.utils.long_chunks import long_chunks
from atom.utils.row_groups import are_even, long_prompts


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """A measured case of attention. caches: several to rotate, so that no call finds its own in the
    card's cache."""

    qkv: torch.Tensor
    rotary: Rotary
    caches: list[LayerCache]
    shape: AttentionShape
    metadata: AttentionMetaData
    contexts: list[int]
    queries: list[int]

    @property
    def q(self) -> torch.Tensor:
        """Give queries [T, Hq, D], contiguous."""
        width = self.shape.num_heads * self.shape.head_dim
        return self.qkv[:, :width].contiguous().unflatten(1, (self.shape.num_heads, -1))

    @property
    def kv_bytes(self) -> int:
        """Return the bytes of keys and values that one call must read."""
        return 4 * self.shape.num_kv_heads * self.shape.head_dim * sum(self.contexts)

    @property
    def flops(self) -> int:
        """Count the operations of both products, causal: query i of n sees context - n + i + 1
        tokens."""
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
    """Make a case in the scheduler's order: rows of one query first, the longest in front.
    contiguous: tables of ascending blocks instead of random."""
    device = torch.device("cuda")
    order_of = sorted(range(len(contexts)), key=lambda row: (queries[row] > 1, -contexts[row]))
    contexts, queries = [contexts[row] for row in order_of], [queries[row] for row in order_of]
    counts = [-(-context // block_size) for context in contexts]
    total = sum(counts)
    order = torch.arange(total) if contiguous else torch.randperm(total)
    longest = max(max_context or 0, *contexts)
    tables = torch.zeros(len(contexts), -(-longest // block_size), dtype=torch.int32)
    at = 0
    for row, count in enumerate(counts):
        tables[row, :count] = order[at : at + count]
        at += count
    positions = torch.cat(
        [
            torch.arange(context - count, context)
            for context, count in zip(contexts, queries, strict=True)
        ]
    )
    rows = torch.repeat_interleave(torch.arange(len(contexts)), torch.tensor(queries))
    slots = tables[rows, positions // block_size].long() * block_size + positions % block_size
    starts = torch.zeros(len(contexts) + 1, dtype=torch.int32)
    starts[1:] = torch.tensor(queries).cumsum(0)
    tokens = int(starts[-1])

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, dtype=torch.bfloat16, device=device)

    size = (total, block_size, heads[1], head_dim)
    decodes = [c for c, count in zip(contexts, queries, strict=True) if count == 1]
    counts_of_rows = np.array(contexts) - np.array(queries), np.array(queries), len(decodes)
    return AttentionCase(
        qkv=random(tokens, (heads[0] + 2 * heads[1]) * head_dim),
        rotary=Rotary(
            cos_sin=torch.randn(longest, head_dim, device=device),
            positions=positions.to(device),
            q_norm=NormWeight(random(head_dim), 1e-6),
            k_norm=NormWeight(random(head_dim), 1e-6),
        ),
        caches=[LayerCache(random(*size), random(*size)) for _ in range(copies)],
        shape=AttentionShape(heads[0], heads[1], head_dim, head_dim**-0.5),
        metadata=AttentionMetaData(
            query_starts=starts.to(device),
            context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
            block_tables=tables.to(device),
            slot_mapping=slots.to(device),
            num_decodes=len(decodes),
            max_query_len=max(queries),
            max_context_len=longest,
            even_contexts=are_even(np.array(decodes)),
            prompts=PromptPlan(long_prompts(*counts_of_rows), long_chunks(*counts_of_rows)),
        ),
        contexts=list(contexts),
        queries=list(queries),
    )
