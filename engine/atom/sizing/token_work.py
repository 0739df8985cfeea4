"""What one token costs: the elements of the matrices that it is multiplied with."""

from __future__ import annotations

from atom.sizing.layers import LayerFacts
from atom.sizing.model_facts import ModelFacts
from atom.sizing.weights import projections


def token_elements(facts: ModelFacts) -> int:
    """Count the elements of all layers' matrices that a token goes through; of experts those it is
    routed to."""
    return sum(
        alike.count * _used_copies(matrix.copies, alike.layer) * matrix.rows * matrix.columns
        for alike in facts.layer_counts
        for matrix in projections(alike.layer, facts.hidden_size, facts.experts_block)
    )


def _used_copies(copies: int, layer: LayerFacts) -> int:
    if copies == 1:
        return 1
    experts = layer.mlp.experts
    assert experts is not None, "copies are experts"
    return experts.per_token
