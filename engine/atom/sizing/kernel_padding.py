"""What kernels add to weights as they hold them: AITER's experts of MXFP4 are whole tiles.

Called by the operator's plan, and by the adapter that pads (backends/aiter_ops/fp4_experts.py).
"""

from __future__ import annotations

from atom.sizing.model_facts import ModelFacts
from atom.sizing.quantization import Element

# What both sizes of an expert on a rank are padded to.
AITER_EXPERT_UNIT = 256
# Their experts have the clamped activation of AITER's kernels.
_CLAMPED = ("GptOssForCausalLM",)
_FP4_INPUT_BITS = 4


def aiter_expert_unit(facts: ModelFacts) -> int:
    """Multiples in which AITER holds the sizes of the model's experts on a card that multiplies
    MXFP4; 1 where it leaves them as they are, or to another backend."""
    stored = facts.quantization
    if stored is None or stored.element is not Element.FP4:
        return 1
    takes = facts.architecture in _CLAMPED or stored.input_bits == _FP4_INPUT_BITS
    return AITER_EXPERT_UNIT if takes else 1
