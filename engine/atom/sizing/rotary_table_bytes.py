"""The bytes of a model's tables by position: cosines and sines of each kind of rope, on every rank.

A table has a row for each served position (`max_model_len`), whatever the checkpoint's context;
layers of one kind share it, including the checkpoint's draft layers. Tables are float32, since
angles of long contexts need its precision. The engine's modules are model_ops/rotary_embedding.py.
"""

from __future__ import annotations

from atom.sizing.attention.kinds import Rope, StateAttention
from atom.sizing.model_facts import ModelFacts

_FLOAT32_BYTES = 4


def rotary_bytes(facts: ModelFacts, max_model_len: int) -> int:
    """Return the bytes of all tables on one rank; a rope that does not rotate has a single row."""
    still = sum(width for rope, width in rope_tables(facts) if not rope.turns)
    return max_model_len * position_bytes(facts) + still * _FLOAT32_BYTES


def position_bytes(facts: ModelFacts) -> int:
    """Return the bytes that each position takes in all tables."""
    return _FLOAT32_BYTES * sum(
        (width if rope.turns else 0) + (1 if rope.warms else 0)
        for rope, width in rope_tables(facts)
    )


def rope_tables(facts: ModelFacts) -> list[tuple[Rope, int]]:
    """Return each kind of rope with its table's elements of a position."""
    attentions = (alike.layer.attention for alike in facts.layer_counts)
    return list(
        dict.fromkeys(
            (attention.rope, attention.rope_dim)
            for attention in attentions
            if not isinstance(attention, StateAttention)
        )
    )
