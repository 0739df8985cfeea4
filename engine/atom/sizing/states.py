"""What layers keep of a sequence that is no key and no value: a state, of one size at any length.

A layer with a state reads what the tokens before left there and changes it, token by token. A
sequence that runs has one of each such layer, in float32, divided over ranks by heads. Values only,
as layers.py, whose attention may be of this kind.
"""

from __future__ import annotations

from dataclasses import dataclass

_ELEMENT_BYTES = 4  # float32: what thousands of tokens add up would lose its digits in less


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    """Heads of a gated delta net (arXiv 2412.06464), all of them or one rank's: of keys (queries
    have as many) and of values, each key head serving as many value heads, and elements of a head
    of either. conv_width: tokens that the convolution before it sees, the newest included."""

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
        """Count what the convolution sees of a token: queries, keys and values of all heads."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet(DeltaShape):
    """A gated delta net as a checkpoint has it.

    `by_key_head`: its projections are in two matrices, each key head's parts together (Qwen3-Next);
    else queries, keys and values are one, part by part, and what else there is a matrix each.
    """

    by_key_head: bool = True

    def state_bytes(self, ranks: int = 1) -> int:
        """Bytes of one sequence's state on one of `ranks` ranks: a matrix of each value head, and
        what the convolution still has to see."""
        matrices = self.value_heads * self.key_dim * self.value_dim
        tail = self.conv_channels * (self.conv_width - 1)
        return (matrices + tail) // ranks * _ELEMENT_BYTES
