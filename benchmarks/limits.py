"""What the hardware allows: the bytes that a step must read and the products that it must compute.

Weights and cache are read once; of a step's experts those that uniform routing touches, and of its
products those that a token goes through. Latent attention is counted folded in decodes and unfolded
in prompts. Ceilings are parameters, so that a figure can be given as a share of any card's limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom.sizing.kv_layout import kv_bytes_per_token
from atom.sizing.layers import AttentionFacts, LayerFacts
from atom.sizing.model_facts import ModelFacts
from atom.sizing.weights import projections

_BYTES = 2  # bfloat16 weights and KV


@dataclass(frozen=True, slots=True)
class Ceilings:
    """bytes_per_second: of reading memory; flops_per_second: of dense bfloat16 products."""

    bytes_per_second: float
    flops_per_second: float


# Measured on one H200: device copy (read and write), and a large product on random data.
H200 = Ceilings(bytes_per_second=4.3e12, flops_per_second=790e12)


def _layer_weights(facts: ModelFacts, tokens: int | None) -> float:
    """Elements of all layers' matrices that a step of `tokens` touches; None: those that one token
    goes through."""
    total = 0.0
    for alike in facts.layer_counts:
        for matrix in projections(alike.layer, facts.hidden_size, facts.experts_block):
            copies = 1.0 if matrix.copies == 1 else _touched(alike.layer, tokens)
            total += alike.count * copies * matrix.rows * matrix.columns
    return total


def _touched(layer: LayerFacts, tokens: int | None) -> float:
    """Experts of a layer."""
    experts = layer.mlp.experts
    assert experts is not None
    if tokens is None:
        return experts.per_token
    return experts.count * (1.0 - (1.0 - experts.per_token / experts.count) ** tokens)


def _attention_elements(facts: ModelFacts, *, decodes: bool) -> int:
    """Of all layers' heads, multiplied with each token that a query sees."""
    return sum(
        alike.count
        * alike.layer.attention.num_heads
        * _head_elements(alike.layer.attention, decodes=decodes)
        for alike in facts.layer_counts
    )


def _head_elements(attention: AttentionFacts, *, decodes: bool) -> int:
    """Scores, and sums of values."""
    latent = attention.latent
    if latent is None:
        return 2 * attention.head_dim
    if decodes:
        return latent.cached_dim + latent.kv_rank
    return attention.head_dim + latent.value_dim


def decode_seconds(facts: ModelFacts, rows: int, context: float, card: Ceilings) -> float:
    """Least time of one decode step: weights and cache read once, or its products' time."""
    head = facts.hidden_size * facts.vocab_size
    moved = _BYTES * (_layer_weights(facts, rows) + head)
    moved += rows * context * kv_bytes_per_token(facts, _BYTES)
    products = _layer_weights(facts, None) + head
    products += _attention_elements(facts, decodes=True) * context
    return max(moved / card.bytes_per_second, 2 * rows * products / card.flops_per_second)


def prefill_tokens_per_second(facts: ModelFacts, length: int, card: Ceilings) -> float:
    """Most prompt tokens a second at this prompt length."""
    per_token = 2 * _layer_weights(facts, None)
    per_token += _attention_elements(facts, decodes=False) * length  # half of the tokens are seen
    per_token += 2 * facts.hidden_size * facts.vocab_size / length
    return card.flops_per_second / per_token
