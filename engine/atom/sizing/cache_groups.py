"""Groups of layers over one pool of equal KV blocks: which layers share a block table.

A block belongs to one group at a time and holds `block_size` tokens of all its layers. The layer at
position i of any group uses the pool's i-th tensor. So every block takes the same bytes, and a
block that one group freed can serve any other group. If groups cannot have the same number of
layers, some positions stay unused. If layers differ in bytes, each group has layers of one size,
and several of its layers share a position, one after the other in every block, so that all
positions have the same size. The idea is that of vLLM's hybrid KV cache manager. Pure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from atom.sizing.mask_rule import CAUSAL, MaskRule

# Each group costs a block table per sequence, and a kind of layer needs one at least.
MAX_GROUPS = 8
# If windows cache far more of a token than the growing layers: groups of few layers each, so that a
# block is no larger than the growing layers' part.
MAX_PACKED_GROUPS = 32


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers whose tokens are in the same blocks.

    `layers`: indices of the model's layers, then the draft's; the i-th uses the pool's tensor
    number i // `layers_per_tensor`. `mask`: the tokens that a query sees. `offsets`: for layers of
    different sizes that are packed one after the other in a pool of one tensor, the first byte of
    each layer, in bytes of a token; empty without such packing.
    """

    layers: tuple[int, ...] = ()
    mask: MaskRule = CAUSAL
    layers_per_tensor: int = 1
    offsets: tuple[int, ...] = ()

    @property
    def num_tensors(self) -> int:
        """Return how many of the pool's tensors its layers are in."""
        if self.offsets:
            return 1
        return -(-len(self.layers) // self.layers_per_tensor)

    @property
    def window(self) -> int | None:
        """Return how many of the newest tokens it has to keep, None for all."""
        return self.mask.window

    def blocks(self, tokens: int, block_size: int, lookahead: int = 0) -> int:
        """Return the blocks that a sequence of `tokens` holds while it decodes.

        A window touches one block more than it fills, since it begins anywhere in a block, and
        reaches `lookahead` drafts further.
        """
        blocks = -(-tokens // block_size)
        if self.window is None:
            return blocks
        return min(blocks, 1 - (1 - self.window - lookahead) // block_size)

    def matched_blocks(self, blocks: int, block_size: int) -> int:
        """Return how many of the last of `blocks` full blocks the next token sees."""
        if self.window is None:
            return blocks
        return min(blocks, -((1 - self.window) // block_size))


class CachedLayer(NamedTuple):
    """A layer's index, and its bytes of a token; own_bytes: further bytes, which layers of other
    kinds do not share."""

    layer: int
    token_bytes: int
    own_bytes: int = 0


# Layers by the tokens that they see.
Kinds = Mapping[MaskRule, Sequence[CachedLayer]]


@dataclass(frozen=True, slots=True)
class Grouping:
    """Groups, and the bytes of a token at each position of a block."""

    groups: tuple[CacheGroup, ...]
    token_bytes: tuple[int, ...]

    def sequence_bytes(self, tokens: int) -> int:
        """Return the bytes of a sequence of `tokens`, without rounding to blocks."""
        kept = (min(tokens, group.window or tokens) for group in self.groups)
        return sum(kept) * sum(self.token_bytes)


def group_layers(kinds: Kinds, longest_tokens: int) -> Grouping:
    """Divide layers into groups of equal size.

    The layers of a kind are dealt evenly to as many groups as the size requires. The size is the
    one at which a sequence of `longest_tokens` takes the fewest bytes, padding included; of equally
    good sizes the largest, since every group costs a block table. There are at most MAX_GROUPS
    groups, or one of each kind if there are more kinds. If all layers see the same tokens, they
    form one group without padding.
    """
    if len(kinds) == 1:
        return Grouping(*_alone(*next(iter(kinds.items()))))
    alike = _by_bytes(kinds)
    position = math.lcm(*(each.token_bytes for each in alike))
    numbers = [-(-len(each.layers) // (position // each.token_bytes)) for each in alike]
    most = max(MAX_GROUPS, len(alike))
    # By how many groups each kind has: the largest size, and so the fewest groups, comes first.
    sizes = range(max(numbers), 0, -1)
    counts = dict.fromkeys(tuple(-(-number // size) for number in numbers) for size in sizes)
    divisions = [_divide(alike, each, position) for each in counts if sum(each) <= most]
    return min(divisions, key=lambda grouping: grouping.sequence_bytes(longest_tokens))


def pack_layers(
    growing: Sequence[CachedLayer],
    windows: Sequence[CachedLayer],
    mask: MaskRule,
    longest_tokens: int,
) -> Grouping:
    """Pack the layers that cache all tokens into one group, and the layers that cache a window into
    further groups. Their number is the one at which a sequence of `longest_tokens` takes the fewest
    bytes; of equally good numbers, the smallest. A group's layers follow one another in every
    block, whatever their sizes."""
    numbers = range(1, min(len(windows), MAX_PACKED_GROUPS - 1) + 1)
    packed = [_packed(growing, _dealt(windows, number), mask) for number in numbers]
    return min(packed, key=lambda grouping: grouping.sequence_bytes(longest_tokens))


def _dealt(layers: Sequence[CachedLayer], number: int) -> list[list[CachedLayer]]:
    """Deal layers to `number` lists, the largest first, each to the list with the fewest bytes."""
    dealt: list[list[CachedLayer]] = [[] for _ in range(number)]
    filled = [0] * number
    for layer in sorted(layers, key=lambda each: -each.token_bytes):
        least = filled.index(min(filled))
        dealt[least].append(layer)
        filled[least] += layer.token_bytes
    return dealt


def _packed(
    growing: Sequence[CachedLayer], windows: Sequence[Sequence[CachedLayer]], mask: MaskRule
) -> Grouping:
    kinds = [(CAUSAL, growing)] if growing else []
    kinds += [(mask, window) for window in windows]
    groups, most = [], 0
    for seen, layers in kinds:
        ends = list(itertools.accumulate(each.token_bytes for each in layers))
        offsets = (0, *ends[:-1])
        groups.append(CacheGroup(tuple([each.layer for each in layers]), seen, 1, offsets))
        most = max(most, ends[-1])
    return Grouping(tuple(groups), (most,))


def _alone(
    mask: MaskRule, layers: Sequence[CachedLayer]
) -> tuple[tuple[CacheGroup], tuple[int, ...]]:
    """Make one group, whose positions take what their layers do, the largest first."""
    ordered = sorted(layers, key=lambda each: -each.token_bytes)
    group = CacheGroup(tuple([each.layer for each in ordered]), mask)
    return (group,), tuple([each.token_bytes + each.own_bytes for each in ordered])


class _Alike(NamedTuple):
    """Layers that see the same and keep as much of a token."""

    mask: MaskRule
    token_bytes: int
    own_bytes: int
    layers: list[int]


def _by_bytes(kinds: Kinds) -> list[_Alike]:
    found: dict[tuple[MaskRule, int, int], _Alike] = {}
    for mask, layers in kinds.items():
        for layer, size, own in layers:
            found.setdefault((mask, size, own), _Alike(mask, size, own, [])).layers.append(layer)
    return list(found.values())


def _divide(alike: Sequence[_Alike], counts: Sequence[int], position_bytes: int) -> Grouping:
    """Deal each kind to its count of groups."""
    groups = tuple(
        CacheGroup(tuple(each.layers[first::count]), each.mask, position_bytes // each.token_bytes)
        for each, count in zip(alike, counts, strict=True)
        for first in range(count)
    )
    positions = max(group.num_tensors for group in groups)
    own = {each.own_bytes * (position_bytes // each.token_bytes) for each in alike}
    return Grouping(groups, (position_bytes + sum(own),) * positions)
