"""Values of layers that keep a state instead of keys and values: weights, a step's tokens.

Shapes: T tokens of a step; Hk key heads and Hv value heads of Dk and Dv elements on this rank, each
key head serving Hv / Hk neighbouring value heads; C = 2·Hk·Dk + Hv·Dv channels of a convolution.
Data only, as values.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom.model_ops.values import NormWeight
from atom.sizing.states import DeltaShape


@dataclass(frozen=True, slots=True)
class ConvWeight:
    """A short convolution's weights: taps [C, W] of each channel, the newest token's last, and bias
    [C]. has_silu: silu is applied to the result."""

    taps: torch.Tensor
    bias: torch.Tensor | None = None
    has_silu: bool = True


@dataclass(frozen=True, slots=True)
class DeltaTokens:
    """A step's tokens in a gated delta net. qkv [T, C]: queries, keys and values of all heads,
    after the convolution; b, a [T, Hv]: the inputs of each head's learning rate and decay; a [T,
    Hv, Dk] if each channel of a key has its own decay."""

    qkv: torch.Tensor
    b: torch.Tensor
    a: torch.Tensor


@dataclass(frozen=True, slots=True)
class DeltaWeight:
    """The decay parameters of each value head: a_log, dt_bias [Hv] float32; dt_bias [Hv, Dk] if
    each channel of a key has its own."""

    a_log: torch.Tensor
    dt_bias: torch.Tensor


@dataclass(frozen=True, slots=True)
class DeltaNetWeight:
    """The parameters of a gated delta net between its projections: conv [C, width], of the
    convolution by channel; rule; norm: of each value head's results, [Dv]."""

    conv: torch.Tensor
    rule: DeltaWeight
    norm: NormWeight


@dataclass(frozen=True, slots=True)
class DeltaSlots:
    """A layer's state in every slot: states [slots, Hv, Dk, Dv] and tails [slots, C, width - 1],
    float32."""

    shape: DeltaShape
    states: torch.Tensor
    tails: torch.Tensor


@dataclass(frozen=True, slots=True)
class SsdTokens:
    """A step's tokens in a Mamba-2 mixer. qkv [T, C]: queries, keys and values of all heads, after
    the convolution; steps [T, Hv]: the inputs of each head's learning rate and decay."""

    qkv: torch.Tensor
    steps: torch.Tensor


@dataclass(frozen=True, slots=True)
class SsdWeight:
    """The decay parameters and the value skip of each value head: a_log, dt_bias, skip [Hv]
    float32."""

    a_log: torch.Tensor
    dt_bias: torch.Tensor
    skip: torch.Tensor
