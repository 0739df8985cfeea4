"""What the hardware allows: the bytes that a step must read and the products that it must compute.

Weights and cache are read once; of a step's experts those that uniform routing touches, and of its
products those that a token goes through. Latent attention is counted folded in decodes and unfolded
in prompts. Ceilings are parameters, so that a figure can be given as a share of any card's limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from atom.sizing.kv_layout import KvElement, kv_terms
from atom.sizing.layers import AttentionFacts, LayerFacts
from atom.sizing.model_facts import ModelFacts
from atom.sizing.weights import Projection, stored_projections

_BYTES = 2  # bfloat16 weights and KV
_KV = KvElement(_BYTES)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """bytes_per_second: of reading memory; flops_per_second: of dense bfloat16 products."""

    bytes_per_second: float
    flops_per_second: float


# Measured on one H200: device copy (read and write), and a large product on random data.
H200 = Ceilings(bytes_per_second=4.3e12, flops_per_second=790e12)


def _elements(matrix: Projection) -> int:
    return matrix.rows * matrix.columns


def _stored_bytes(matrix: Projection) -> int:
    """With the scales of one that is quantised."""
    if matrix.quantization is None:
        return _BYTES * _elements(matrix)
    return matrix.quantization.matrix_bytes(matrix.rows, matrix.columns)


def _layer_weights(
    facts: ModelFacts, tokens: int | None, size: Callable[[Projection], int] = _elements
) -> float:
    """What all layers' matrices have that a step of `tokens` touches; None: those that one token
    goes through."""
    total = 0.0
    for alike in facts.layer_counts:
        for matrix in stored_projections(facts, alike.layer):
            copies = 1.0 if matrix.copies == 1 else _touched(alike.layer, tokens)
            total += alike.count * copies * size(matrix)
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


def decode_seconds(
    facts: ModelFacts, rows: int, context: float, card: Ceilings, kv: KvElement = _KV
) -> float:
    """Least time of one decode step: weights and cache read once, or its products' time."""
    head = facts.hidden_size * facts.vocab_size
    token_bytes = sum(term.layers * term.token_bytes for term in kv_terms(facts, kv))
    moved = _layer_weights(facts, rows, _stored_bytes) + _BYTES * head
    moved += rows * context * token_bytes
    products = _layer_weights(facts, None) + head
    products += _attention_elements(facts, decodes=True) * context
    return max(moved / card.bytes_per_second, 2 * rows * products / card.flops_per_second)


def prefill_tokens_per_second(facts: ModelFacts, length: int, card: Ceilings) -> float:
    """Most prompt tokens a second at this prompt length."""
    per_token = 2 * _layer_weights(facts, None)
    per_token += _attention_elements(facts, decodes=False) * length  # half of the tokens are seen
    per_token += 2 * facts.hidden_size * facts.vocab_size / length
    return card.flops_per_second / per_token
