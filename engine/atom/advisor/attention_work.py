"""The bytes and products of attention on one rank: all layers that see the same tokens together.

The bytes of a cached token are those of the plan of the cache (`kv_terms`). Latent attention is
counted folded in decodes and unfolded in prompts. An indexer scores every token and attends to the
ones it selects. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atom.advisor.step_shape import Chunk
from atom.sizing.attention.kinds import (
    AttentionFacts,
    EntriesAttention,
    GroupedAttention,
    LatentAttention,
    SharedKvAttention,
    StateAttention,
)
from atom.sizing.kv_layout import KvElement, kv_terms
from atom.sizing.mask_rule import CAUSAL, MaskKind, MaskRule
from atom.sizing.model_facts import ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWork:
    """Layers that see the same tokens. top_k: the most that a query attends to, 0 for all that the
    mask shows; rate: tokens of one cached entry. token_bytes: read of each token that is attended
    to; written_bytes: of each new token; decode_flops, prompt_flops: of a query and a token;
    scored_bytes, scored_flops: of an indexer, of each earlier token."""

    mask: MaskRule = CAUSAL
    top_k: int = 0
    rate: int = 1
    token_bytes: float = 0.0
    written_bytes: float = 0.0
    decode_flops: float = 0.0
    prompt_flops: float = 0.0
    scored_bytes: float = 0.0
    scored_flops: float = 0.0

    @property
    def key(self) -> tuple[MaskRule, int, int]:
        """Return the fields that decide which tokens are seen."""
        return self.mask, self.top_k, self.rate

    def seen(self, contexts: NDArray[np.int64]) -> int:
        """Sum the tokens, or entries, that decodes with these contexts attend to."""
        seen = contexts
        if self.mask.kind is not MaskKind.CAUSAL:
            seen = contexts - np.maximum(self.mask.first_seen(contexts - 1), 0)
        return int(self._limited(seen).sum())

    def pairs(self, chunk: Chunk) -> int:
        """Count the pairs of a query of the chunk and a token, or entry, that it attends to."""
        before, count = chunk.computed, chunk.tokens
        if self.mask.kind is MaskKind.CAUSAL and not self.top_k and self.rate == 1:
            return count * before + count * (count + 1) // 2
        return self.seen(np.arange(before + 1, before + count + 1, dtype=np.int64))

    def read_by(self, chunk: Chunk) -> int:
        """Count the tokens that any query of the chunk sees: they are read once at least."""
        first = max(0, int(self.mask.first_seen(chunk.computed)))
        return (chunk.computed + chunk.tokens - first) // self.rate

    def _limited(self, seen: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.rate > 1:
            seen = seen // self.rate
        return np.minimum(seen, self.top_k) if self.top_k else seen


def attention_works(
    facts: ModelFacts, kv: KvElement, ranks: int, block_size: int
) -> tuple[AttentionWork, ...]:
    """Return the work of a model's layers, those that see the same tokens added up."""
    merged: dict[tuple[MaskRule, int, int], AttentionWork] = {}
    for each in _works(facts, kv, ranks, block_size):
        known = merged.get(each.key)
        merged[each.key] = each if known is None else _sum(known, each)
    return tuple(merged.values())


def _works(
    facts: ModelFacts, kv: KvElement, ranks: int, block_size: int
) -> Iterator[AttentionWork]:
    """Yield the work of each kind of layer: what it reads and writes by the plan's terms, then what
    it computes."""
    for term in kv_terms(facts, kv, ranks, block_size=block_size):
        size = float(term.layers * term.token_bytes)
        if term.cache != "MLA latent":
            yield AttentionWork(mask=term.mask, token_bytes=size, written_bytes=size)
    for alike in facts.layer_counts:
        attention = alike.layer.attention
        if isinstance(attention, LatentAttention):
            yield _latent(attention, kv, alike.count, ranks)
        elif isinstance(attention, SharedKvAttention):
            target = facts.layer(attention.target).attention
            yield _computed(attention, alike.count, ranks, _shared_bytes(target, kv, ranks))
        elif not isinstance(attention, StateAttention):
            yield from _others(attention, alike.count, ranks)


def _others(
    attention: GroupedAttention | EntriesAttention, layers: int, ranks: int
) -> Iterator[AttentionWork]:
    if isinstance(attention, GroupedAttention):
        yield _computed(attention, layers, ranks, 0.0)
        return
    heads = -(-attention.num_heads // ranks)
    flops = 4.0 * heads * attention.head_dim * layers
    yield AttentionWork(mask=attention.mask, decode_flops=flops, prompt_flops=flops)
    net = attention.compressed
    if net.rate:
        top_k = 0 if net.index is None else net.index.top_k
        # Every entry is scored by the indexer; the cache's term counts the bytes of entries.
        scored = 0.0 if net.index is None else 2.0 * net.index.heads * net.index.dim * layers
        yield AttentionWork(
            rate=net.rate,
            top_k=top_k,
            decode_flops=flops,
            prompt_flops=flops,
            scored_flops=scored / net.rate,
        )


def _computed(
    attention: GroupedAttention | SharedKvAttention, layers: int, ranks: int, read_bytes: float
) -> AttentionWork:
    value = attention.value_dim if isinstance(attention, GroupedAttention) else attention.head_dim
    heads = -(-attention.num_heads // ranks)
    flops = 2.0 * heads * (attention.head_dim + value) * layers
    return AttentionWork(
        mask=attention.mask,
        token_bytes=read_bytes * layers,
        decode_flops=flops,
        prompt_flops=flops,
    )


def _shared_bytes(target: AttentionFacts, kv: KvElement, ranks: int) -> float:
    """Return the bytes of a token in the earlier layer whose keys and values a layer reads."""
    assert isinstance(target, GroupedAttention), "only such layers share their keys"
    row = target.head_dim * kv.size_bytes + kv.scale_bytes
    return 2.0 * target.heads.kv_per_rank(ranks) * row


def _latent(attention: LatentAttention, kv: KvElement, layers: int, ranks: int) -> AttentionWork:
    latent, index = attention.latent, attention.latent.own_index
    heads = -(-attention.num_heads // ranks)
    rotated = 2 if kv.scale_bytes else kv.size_bytes
    row = latent.kv_rank * kv.size_bytes + kv.scale_bytes + latent.rope_dim * rotated
    keys = 0 if index is None else index.dim * kv.size_bytes + kv.scale_bytes
    scores = 0.0 if index is None else 2.0 * index.heads * index.dim
    return AttentionWork(
        mask=attention.mask,
        top_k=0 if latent.index is None else latent.index.top_k,
        token_bytes=float(layers * row),
        written_bytes=float(layers * (row + keys)),
        decode_flops=2.0 * heads * (latent.cached_dim + latent.kv_rank) * layers,
        prompt_flops=2.0 * heads * (attention.head_dim + latent.value_dim) * layers,
        scored_bytes=float(layers * keys),
        scored_flops=scores * layers,
    )


def _sum(one: AttentionWork, other: AttentionWork) -> AttentionWork:
    return AttentionWork(
        mask=one.mask,
        top_k=one.top_k,
        rate=one.rate,
        token_bytes=one.token_bytes + other.token_bytes,
        written_bytes=one.written_bytes + other.written_bytes,
        decode_flops=one.decode_flops + other.decode_flops,
        prompt_flops=one.prompt_flops + other.prompt_flops,
        scored_bytes=one.scored_bytes + other.scored_bytes,
        scored_flops=one.scored_flops + other.scored_flops,
    )
