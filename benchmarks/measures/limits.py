"""What the hardware allows: the bytes that a step must read and the products that it must compute.

Weights and cache are read once; of a step's experts those that were counted, else those that
uniform routing touches, and of its products those that a token goes through. Latent attention is
counted folded in decodes and unfolded in prompts. Ceilings are parameters: those of a card that is
known, or what is measured on the device that runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from atom.sizing.attention.kinds import AttentionFacts, LatentAttention, StateAttention
from atom.sizing.kv_layout import KvElement, kv_terms, state_terms
from atom.sizing.layers import Experts, LayerFacts
from atom.sizing.model_facts import ModelFacts
from atom.sizing.projection import Projection
from atom.sizing.weights.layer_matrices import stored_projections, token_elements

_BYTES = 2  # bfloat16 keys and values
_KV = KvElement(_BYTES)
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The limits of a card. bytes_per_second: of reading memory; flops_per_second: of dense
    products."""

    bytes_per_second: float
    flops_per_second: float


@dataclass(frozen=True, slots=True)
class Work:
    """Hold what a step must read, and the products that it must compute."""

    moved_bytes: float
    flops: float

    def seconds(self, card: Ceilings) -> float:
        """The least time that it takes."""
        return max(self.moved_bytes / card.bytes_per_second, self.flops / card.flops_per_second)


# Measured on one H200: device copy (read and write), and a large bfloat16 product on random data.
H200 = Ceilings(bytes_per_second=4.3e12, flops_per_second=790e12)
KNOWN = {"NVIDIA H200": H200}


def ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Look up the limits of a card that is known, so that figures of different days compare; else
    measure them now, with products of dtype."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return KNOWN.get(name) or measured_ceilings(device, dtype)


def measured_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Measure a copy that no cache holds, which reads and writes, and a large product."""
    elements, width = (1 << 30, 8192) if device.type == "cuda" else (1 << 26, 1024)
    source = torch.zeros(elements, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    matrix = torch.randn(width, width, device=device).to(dtype)
    copied = _least_seconds(lambda: target.copy_(source), device)
    multiplied = _least_seconds(lambda: matrix @ matrix, device)
    return Ceilings(2 * elements / copied, 2 * width**3 / multiplied)


def _least_seconds(call: Callable[[], object], device: torch.device) -> float:
    """Measure the shortest of some calls: what the device can, whatever else it had to do
    meanwhile."""
    samples = []
    for _ in range(_ROUNDS + 1):  # the first is a warm-up
        started = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        samples.append(time.perf_counter() - started)
    return min(samples[1:])


def _layer_bytes(facts: ModelFacts, tokens: int, touched: float | None) -> float:
    """Sum the bytes of all layers' matrices that a step of `tokens` reads; touched: experts of a
    layer that it goes through, where they were counted."""

    def stored(matrix: Projection) -> float:
        if matrix.quantization is None:
            return facts.weight_dtype_bytes * matrix.rows * matrix.columns
        return matrix.quantization.matrix_bytes(matrix.rows, matrix.columns)  # with its scales

    return _sum_over_matrices(
        facts, stored, lambda layer: _touched(layer, tokens) if touched is None else touched
    )


def _sum_over_matrices(
    facts: ModelFacts,
    size: Callable[[Projection], float],
    experts: Callable[[LayerFacts], float],
) -> float:
    """Sum over all layers' matrices; `experts`: how many of a layer's count."""
    return sum(
        alike.count * (1.0 if matrix.copies == 1 else experts(alike.layer)) * size(matrix)
        for alike in facts.layer_counts
        for matrix in stored_projections(facts, alike.layer)
    )


def _touched(layer: LayerFacts, tokens: int) -> float:
    """Experts of a layer that uniform routing goes through."""
    experts = _experts(layer)
    return experts.count * (1.0 - (1.0 - experts.per_token / experts.count) ** tokens)


def _experts(layer: LayerFacts) -> Experts:
    experts = layer.mlp.experts
    assert experts is not None
    return experts


def _attention_elements(facts: ModelFacts, *, decodes: bool) -> int:
    """Count the elements of all layers' heads, multiplied with each token that a query sees."""
    return sum(
        alike.count
        * alike.layer.attention.num_heads
        * _head_elements(alike.layer.attention, decodes=decodes)
        for alike in facts.layer_counts
        if not isinstance(alike.layer.attention, StateAttention)
    )


def _state_elements(facts: ModelFacts) -> int:
    """Count the elements of all layers' states that a token is multiplied with: what is known of
    its key, what is learnt of it, and the answer to its query."""
    kinds = ((alike.count, alike.layer.attention) for alike in facts.layer_counts)
    return sum(
        3 * count * kind.net.value_heads * kind.net.key_dim * kind.net.value_dim
        for count, kind in kinds
        if isinstance(kind, StateAttention)
    )


def _head_elements(attention: AttentionFacts, *, decodes: bool) -> int:
    """Scores, and sums of values."""
    if not isinstance(attention, LatentAttention):
        return 2 * attention.head_dim
    latent = attention.latent
    if decodes:
        return latent.cached_dim + latent.kv_rank
    return attention.head_dim + latent.value_dim


def decode_work(
    facts: ModelFacts,
    rows: int,
    context: float,
    kv: KvElement = _KV,
    touched: float | None = None,
) -> Work:
    """Compute the work of a step of `rows` decodes around a context; touched: experts of a layer,
    where counted."""
    head = facts.hidden_size * facts.vocab_size
    token_bytes = sum(term.layers * term.token_bytes for term in kv_terms(facts, kv))
    moved = _layer_bytes(facts, rows, touched) + facts.weight_dtype_bytes * head
    # A state is read and written, whatever the context.
    moved += rows * 2 * sum(term.layers * term.state_bytes for term in state_terms(facts))
    products: float = token_elements(facts) + _state_elements(facts) + head
    products += _attention_elements(facts, decodes=True) * context
    return Work(moved + rows * context * token_bytes, 2 * rows * products)


def prompt_work(facts: ModelFacts, prompts: int, length: int) -> Work:
    """Compute the work of prompts of so many tokens, computed in one step."""
    head = facts.hidden_size * facts.vocab_size
    tokens = prompts * length
    moved = _layer_bytes(facts, tokens, None) + facts.weight_dtype_bytes * head
    per_token = 2 * (token_elements(facts) + _state_elements(facts))
    per_token += _attention_elements(facts, decodes=False) * length  # half of the tokens are seen
    return Work(moved, tokens * per_token + 2 * prompts * head)
