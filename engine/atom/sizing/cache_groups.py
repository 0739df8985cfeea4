"""Groups of layers over one pool of equal KV blocks: which layers share a block table.

A block belongs to one group at a time and holds `block_size` tokens of all its layers: the layer at
position i of any group uses the pool's i-th tensor. So every block takes the same bytes, and a
block that one group gave back serves any other. Where groups cannot have equally many layers some
positions stay unused, and where layers differ in bytes a position takes those of the largest.
The idea is that of vLLM's hybrid KV cache manager. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from atom.sizing.mask_rule import CAUSAL, MaskRule

# Each group costs a block table per sequence, and a kind of layer needs one at least.
MAX_GROUPS = 8


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers whose tokens lie in the same blocks.

    `layers`: indices of the model's layers, after them the draft's; the one at position i uses the
    pool's i-th tensor. `mask`: what a query sees.
    """

    layers: tuple[int, ...] = ()
    mask: MaskRule = CAUSAL

    @property
    def window(self) -> int | None:
        """Return how many of the newest tokens it has to keep, None for all."""
        return self.mask.window

    def blocks(self, tokens: int, block_size: int, lookahead: int = 0) -> int:
        """Blocks that a sequence of `tokens` holds while it decodes.

        A window touches a block more than it fills, since it begins anywhere in a block, and
        reaches `lookahead` drafts further.
        """
        blocks = -(-tokens // block_size)
        if self.window is None:
            return blocks
        return min(blocks, 1 - (1 - self.window - lookahead) // block_size)

    def matched_blocks(self, blocks: int, block_size: int) -> int:
        """Return how many of the last of `blocks` full blocks the token behind them sees."""
        if self.window is None:
            return blocks
        return min(blocks, -((1 - self.window) // block_size))


class CachedLayer(NamedTuple):
    """A layer by its index, and what it keeps of a token."""

    layer: int
    token_bytes: int


# Layers by what they see.
Kinds = Mapping[MaskRule, Sequence[CachedLayer]]


@dataclass(frozen=True, slots=True)
class Grouping:
    """Groups, and the bytes of a token at each position of a block."""

    groups: tuple[CacheGroup, ...]
    token_bytes: tuple[int, ...]

    def sequence_bytes(self, tokens: int) -> int:
        """Return what a sequence of `tokens` takes, blocks aside."""
        kept = (min(tokens, group.window or tokens) for group in self.groups)
        return sum(kept) * sum(self.token_bytes)


def group_layers(kinds: Kinds, longest_tokens: int) -> Grouping:
    """Divide layers into groups of equal size.

    The layers of a kind are dealt evenly to as many groups as the size asks for. The size is the
    one at which a sequence of `longest_tokens` takes the fewest bytes, padding included; of equal
    ones the largest, since every group costs a block table. There are at most MAX_GROUPS groups, or
    one of each kind where there are more kinds. Layers of a single kind are one group, not padded.
    """
    most = max(MAX_GROUPS, len(kinds))
    numbers = [len(layers) for layers in kinds.values()]
    sizes = range(max(numbers), 0, -1) if len(kinds) > 1 else numbers
    # By how many groups each kind has: the largest size, and so the fewest groups, comes first.
    counts = dict.fromkeys(tuple(-(-number // size) for number in numbers) for size in sizes)
    divisions = [_divide(kinds, each) for each in counts if sum(each) <= most]
    return min(divisions, key=lambda grouping: grouping.sequence_bytes(longest_tokens))


def _divide(kinds: Kinds, counts: Sequence[int]) -> Grouping:
    """Deal each kind to its count of groups, the largest layers first, so that the layers of a
    position are as alike as they can be."""
    groups: list[CacheGroup] = []
    sizes: list[list[int]] = []
    for (mask, layers), count in zip(kinds.items(), counts, strict=True):
        ordered = sorted(layers, key=lambda each: -each.token_bytes)
        for first in range(count):
            dealt = ordered[first::count]
            groups.append(CacheGroup(tuple([each.layer for each in dealt]), mask))
            sizes.append([each.token_bytes for each in dealt])
    return Grouping(tuple(groups), tuple(map(max, zip_longest(*sizes, fillvalue=0))))
