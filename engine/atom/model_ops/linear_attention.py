"""Values of layers that keep a state instead of keys and values: shapes, weights, a step's tokens.

Shapes: T tokens of a step; Hk key heads and Hv value heads of Dk and Dv elements on this rank, each
key head serving Hv / Hk neighbouring value heads; C = 2·Hk·Dk + Hv·Dv channels of a convolution.
Data only, as values.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """Heads of a gated delta net on this rank. conv_width: tokens that its convolution sees, the
    newest included."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    @property
    def heads_per_key(self) -> int:
        """Value heads that a key head serves."""
        return self.value_heads // self.key_heads

    @property
    def conv_channels(self) -> int:
        """Channels of queries, keys and values together."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class DeltaTokens:
    """A step's tokens in a gated delta net. qkv [T, C]: queries, keys and values of all heads,
    behind the convolution; b, a [T, Hv]: of which come how much a head learns, and forgets."""

    qkv: torch.Tensor
    b: torch.Tensor
    a: torch.Tensor


@dataclass(frozen=True, slots=True)
class DeltaWeight:
    """Say how fast each value head forgets: a_log, dt_bias [Hv] float32."""

    a_log: torch.Tensor
    dt_bias: torch.Tensor
