"""What the hardware allows, by the formulae of docs/results/limits.md: a step's bytes and flops.

Ceilings are parameters, so that a figure can be given as a share of any card's limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom.sizing.kv_layout import kv_bytes_per_token
from atom.sizing.model_facts import ModelFacts

_BYTES = 2  # bfloat16 weights and KV


@dataclass(frozen=True, slots=True)
class Ceilings:
    """bytes_per_second: of reading memory; flops_per_second: of dense bfloat16 products."""

    bytes_per_second: float
    flops_per_second: float


# Measured on one H200: device copy (read and write), and a large product on random data.
H200 = Ceilings(bytes_per_second=4.3e12, flops_per_second=790e12)


def _layer_weights(facts: ModelFacts) -> int:
    layer = facts.layer(0)  # the engine's models have layers that are all alike
    kv = layer.attention.num_kv_heads * layer.attention.head_dim
    attention = 2 * facts.hidden_size * _query_width(facts) + 2 * facts.hidden_size * kv
    return facts.num_layers * (attention + 3 * facts.hidden_size * layer.mlp.intermediate_size)


def _query_width(facts: ModelFacts) -> int:
    attention = facts.layer(0).attention
    return attention.num_heads * attention.head_dim


def decode_seconds(facts: ModelFacts, rows: int, context: float, card: Ceilings) -> float:
    """Least time of one decode step: weights and cache read once, or its products' time."""
    weights = _layer_weights(facts) + facts.hidden_size * facts.vocab_size
    moved = _BYTES * weights + rows * context * kv_bytes_per_token(facts, _BYTES)
    heads = _query_width(facts)
    flops = rows * (2 * weights + 4 * facts.num_layers * heads * context)
    return max(moved / card.bytes_per_second, flops / card.flops_per_second)


def prefill_tokens_per_second(facts: ModelFacts, length: int, card: Ceilings) -> float:
    """Most prompt tokens a second at this prompt length."""
    heads = _query_width(facts)
    per_token: float = 2 * _layer_weights(facts) + 2 * facts.num_layers * heads * length
    per_token += 2 * facts.hidden_size * facts.vocab_size / length
    return card.flops_per_second / per_token
