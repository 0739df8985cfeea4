"""States of fixed size that layers keep of a sequence in place of keys and values.

A layer with a state updates its state with every token. A running sequence has one state for each
such layer, in float32, divided over ranks by heads. Values only, as in layers.py, whose attention
may be of this kind.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace
from typing import Self

_ELEMENT_BYTES = 4  # float32: a sum over thousands of tokens would lose its digits in less


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """Heads of a layer that keeps a state, all of them or one rank's: of keys (queries have as
    many) and of values, each key head serving as many value heads, and elements of a head of
    either. conv_width: tokens that the convolution before it sees, the newest included."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    @property
    def heads_per_key(self) -> int:
        """Return how many value heads a key head serves."""
        return self.value_heads // self.key_heads

    @property
    def conv_channels(self) -> int:
        """Return the channels of the convolution: queries, keys and values of all heads."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def on_rank(self, ranks: int) -> Self:
        """Return one rank's share of the heads; key heads that are fewer than the ranks are on
        several."""
        keys = max(min(1, self.key_heads), self.key_heads // ranks)
        return replace(self, key_heads=keys, value_heads=self.value_heads // ranks)

    def state_bytes(self, ranks: int = 1) -> int:
        """Return the bytes of one sequence's state on one of `ranks` ranks: a matrix of each value
        head, and the inputs that the convolution still needs."""
        own = self.on_rank(ranks)
        matrices = own.value_heads * own.key_dim * own.value_dim
        return (matrices + own.conv_channels * (own.conv_width - 1)) * _ELEMENT_BYTES

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of a token's inputs: the convolved one, and those of the gates."""
        return ((self.conv_channels,),)

    def draft_bytes(self, ranks: int = 1) -> int:
        """Return the bytes on one of `ranks` ranks of a draft's inputs, which are kept until it is
        accepted or rejected."""
        shapes = self.on_rank(ranks).input_shapes
        return sum(math.prod(shape) for shape in shapes) * _ELEMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape(StateShape):
    """Heads of a gated delta net (arXiv 2412.06464). channel_gates: each element of a key forgets
    by itself, as in Kimi Delta Attention (arXiv 2510.26692), and not a head as one."""

    channel_gates: bool = False

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        gates = (self.value_heads, self.key_dim) if self.channel_gates else (self.value_heads,)
        return ((self.conv_channels,), (self.value_heads,), gates)


@dataclass(frozen=True, slots=True, kw_only=True)
class SsdShape(StateShape):
    """Heads of Mamba-2's state space duality (arXiv 2405.21060): keys are its B and queries its C,
    a head of them to a group of value heads."""

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.conv_channels,), (self.value_heads,))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvShape(StateShape):
    """A convolution alone, whose channels are value heads of one element."""


class StateKind(enum.StrEnum):
    """The matrices that a checkpoint has for a layer with a state; a plan's JSON has the name."""

    DELTA_NET = "gated delta net"  # a matrix for each part; some are joined
    DELTA_NET_BY_KEY_HEAD = "gated delta net by key head"  # two, each key head's parts together
    KIMI_DELTA = "Kimi Delta Attention"  # a matrix and a convolution each of q, k and v
    MAMBA2 = "Mamba-2"  # one of gates, values, keys, queries and steps
    SHORT_CONV = "short convolution"  # one matrix of input gates, output gates and values


_SHAPES: dict[StateKind, type[StateShape]] = {
    StateKind.DELTA_NET: DeltaShape,
    StateKind.DELTA_NET_BY_KEY_HEAD: DeltaShape,
    StateKind.KIMI_DELTA: DeltaShape,
    StateKind.MAMBA2: SsdShape,
    StateKind.SHORT_CONV: ConvShape,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateNet(StateShape):
    """A layer with a state as a checkpoint has it. bias: of its matrices; conv_bias: of its
    convolution."""

    kind: StateKind
    bias: bool = False
    conv_bias: bool = False

    @property
    def shape(self) -> StateShape:
        """Return the shape of the state that operations get."""
        heads = {
            "key_heads": self.key_heads,
            "value_heads": self.value_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "conv_width": self.conv_width,
        }
        if self.kind is StateKind.KIMI_DELTA:
            return DeltaShape(**heads, channel_gates=True)
        return _SHAPES[self.kind](**heads)
