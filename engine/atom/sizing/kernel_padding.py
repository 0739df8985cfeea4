"""Memory that AITER's kernels add to a model: padding of experts to whole tiles, and tables.

Called by the operator's plan, and by the adapter that pads (backends/aiter_ops/fp4_experts.py).
"""

from __future__ import annotations

from atom.sizing.model_facts import ModelFacts
from atom.sizing.quantization import Element
from atom.sizing.rotary_table_bytes import rope_tables
from atom.sizing.weights.layer_matrices import stored_projections

# What both sizes of an expert on a rank are padded to.
AITER_EXPERT_UNIT = 256
# Their experts have the clamped activation of AITER's kernels.
_CLAMPED = ("GptOssForCausalLM",)
_FP4_INPUT_BITS = 4
_ROTARY_ELEMENT_BYTES = 2  # it computes in bfloat16 and float16


def aiter_expert_unit(facts: ModelFacts) -> int:
    """Return the multiple to which AITER pads the sizes of the model's experts on a card that
    multiplies MXFP4; 1 if it does not pad them, or leaves them to another backend."""
    experts = (
        matrix.quantization
        for alike in facts.layer_counts
        for matrix in stored_projections(facts, alike.layer)
        if matrix.copies > 1
    )
    clamped = facts.architecture in _CLAMPED
    taken = any(
        stored is not None
        and stored.element is Element.FP4
        and (clamped or stored.input_bits == _FP4_INPUT_BITS)
        for stored in experts
    )
    return AITER_EXPERT_UNIT if taken else 1


def aiter_position_bytes(facts: ModelFacts, max_model_len: int) -> int:
    """Return the bytes of each position in the rotary tables that AITER's kernels read, in their
    own dtype; 0 if windows leave attention to another backend."""
    windows = (alike.layer.attention.mask.window for alike in facts.layer_counts)
    if any(window is not None and window < max_model_len for window in windows):
        return 0
    turning = sum(width for rope, width in rope_tables(facts) if rope.turns)
    return turning * _ROTARY_ELEMENT_BYTES
