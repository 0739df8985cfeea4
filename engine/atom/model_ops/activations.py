"""Activations of MLPs: how the products of gate and up become one, by the names of checkpoints.

Data only: `act_and_mul` of backends/interface.py computes with them, and the specs of models name
them. An activation has a `value`, its name in messages, and says whether it `has_gate`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Activation(enum.Enum):
    """The gate of a gated MLP, by Hugging Face's name of it, or the activation between the matrices
    of an MLP without a gate."""

    SILU = "silu"
    GELU_TANH = "gelu_pytorch_tanh"
    RELU2 = "relu2"  # no gate: the square of the positive part, of one product instead of two

    @property
    def has_gate(self) -> bool:
        """Return whether the activation combines two products, one of them a gate."""
        return self is not Activation.RELU2


@dataclass(frozen=True, slots=True)
class ClampedSwiGLU:
    """Computes gpt-oss's gated activation: (up + 1) · gate · sigmoid(alpha · gate), the gate at
    most `limit` and the up between its two signs."""

    alpha: float
    limit: float
    value = "clamped_swiglu"  # its name, as an Activation's
    has_gate = True


@dataclass(frozen=True, slots=True)
class ClampedSiLU:
    """Computes DeepSeek-V4's gated activation: silu(gate) · up, the gate at most `limit` and the up
    between its two signs."""

    limit: float
    value = "clamped_silu"  # its name, as an Activation's
    has_gate = True


# How gate and up of a gated MLP become one.
Gating = Activation | ClampedSwiGLU | ClampedSiLU
