"""The canonical page of a block: the bytes of all KV heads, whatever the number of ranks.

A page holds the tensors of each layer in the model's order, as a rank's own page does (PageTable),
but each with the heads of every rank: [tokens, heads, bytes]. A tensor without heads (latents,
indexer keys, compressed entries) is the same on every rank, and its bytes are in the page once. A
checkpoint of states is a page, too: of each layer the matrices of all value heads, and the tail of
its convolution, whose channels are those of queries, keys and values, by heads each. So a rank
copies only the slice of its own heads, and engines whose numbers of ranks differ read each other's
pages. Pure arithmetic and views of bytes; knows no device and no transport.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from atom.model_engine.page_access import stores_heads_first
from atom.model_ops.attention import CachedAttention, CachedLayer, StateLayer
from atom.model_ops.page_table import PageTable
from atom.sizing.attention.kinds import GroupedAttention, StateAttention
from atom.sizing.cache_groups import CacheGroup
from atom.sizing.layers import LayerFacts
from atom.sizing.states import StateNet


@dataclass(frozen=True, slots=True)
class Share:
    """Identify one of the ranks that share a model. descriptor: of the memory through which they
    exchange pages; None for a rank alone."""

    rank: int = 0
    ranks: int = 1
    descriptor: int | None = None


@dataclass(frozen=True, slots=True)
class Heads:
    """Name the slice of a rank's KV heads. count: of all ranks; first, own: of this rank; is_first:
    no lower rank has the same heads."""

    count: int
    first: int
    own: int
    is_first: bool

    @staticmethod
    def of(count: int, share: Share) -> Heads:
        """Divide heads over ranks; heads that are fewer than the ranks are on several."""
        own = max(1, count // share.ranks)
        copies = max(1, share.ranks // count)
        return Heads(count, share.rank // copies * own, own, share.rank % copies == 0)

    @staticmethod
    def whole(share: Share) -> Heads:
        """Return the slice of a tensor that every rank has."""
        return Heads(1, 0, 1, share.rank == 0)


@dataclass(frozen=True, slots=True)
class Part:
    """Place one tensor of a layer in a page: [pieces, heads, width] bytes from `offset` on.
    own_offset: in the rank's own page, which has [pieces, heads.own, width]."""

    heads: Heads
    pieces: int
    width: int
    offset: int
    own_offset: int

    def in_page(self, pages: torch.Tensor) -> torch.Tensor:
        """View this rank's heads in canonical pages [n, bytes]: [n, pieces, heads.own, width]."""
        heads = self.heads
        size = self.pieces * heads.count * self.width
        shape = (len(pages), self.pieces, heads.count, self.width)
        shaped = pages[:, self.offset : self.offset + size].view(shape)
        return shaped[:, :, heads.first : heads.first + heads.own]

    def in_own(self, own: torch.Tensor) -> torch.Tensor:
        """View the part in the rank's own pages [n, bytes]: [n, pieces, heads.own, width]."""
        size = self.pieces * self.heads.own * self.width
        shape = (len(own), self.pieces, self.heads.own, self.width)
        return own[:, self.own_offset : self.own_offset + size].view(shape)


@dataclass(frozen=True, slots=True)
class CanonicalPage:
    """The layout of a group's page. parts: in their order."""

    parts: tuple[Part, ...]

    @property
    def page_bytes(self) -> int:
        """Return the size of a page of all heads."""
        return sum(part.pieces * part.heads.count * part.width for part in self.parts)

    @property
    def own_bytes(self) -> int:
        """Return the size of a rank's own page."""
        return sum(part.pieces * part.heads.own * part.width for part in self.parts)

    def describe(self) -> str:
        """Return the shapes of the parts, which are equal for every number of ranks."""
        return ",".join(f"{each.pieces}x{each.heads.count}x{each.width}" for each in self.parts)

    def gather(self, own: torch.Tensor, pages: torch.Tensor) -> None:
        """Copy this rank's own pages [n, bytes] to its slices of canonical pages. Parts that
        several ranks have are copied by the first of them alone."""
        for part in self.parts:
            if part.heads.is_first:
                part.in_page(pages).copy_(part.in_own(own))

    def scatter(self, pages: torch.Tensor, own: torch.Tensor) -> None:
        """Copy this rank's slices of canonical pages to its own pages."""
        for part in self.parts:
            part.in_own(own).copy_(part.in_page(pages))


@dataclass(frozen=True, slots=True)
class CachedLayers:
    """The layers of a model that keep something of a sequence, and those that draft behind them.
    groups: of those that cache tokens; facts: of each layer; backends: the chosen one of each
    operation."""

    layers: Sequence[CachedLayer]
    groups: Sequence[CacheGroup]
    facts: Sequence[LayerFacts]
    backends: Mapping[str, str]


def _pages_of_groups(
    cached: CachedLayers, tables: Sequence[PageTable], share: Share
) -> list[CanonicalPage]:
    """Return the layout of the pages of each group. tables: of the rank's own pages of them."""
    heads_first, pages = stores_heads_first(cached.backends), []
    for group, table in zip(cached.groups, tables, strict=True):
        offset, parts = 0, []
        segments = iter(table.segments)
        for index, count, is_by_head in _tensors_of(cached, group):
            segment = next(segments)
            heads = _heads(cached, index, share) if is_by_head else Heads.whole(share)
            pieces = 1
            if heads.count > 1 and not heads_first:
                pieces = count
            width = segment.size // (pieces * heads.own)
            part = Part(heads, pieces, width, offset, segment.offset)
            offset += pieces * heads.count * width
            parts.append(part)
        pages.append(CanonicalPage(tuple(parts)))
    return pages


def pages_by_kind(
    cached: CachedLayers, tables: Sequence[PageTable], share: Share
) -> list[CanonicalPage]:
    """Return the layout of the pages of each group, and of checkpoints if these have a table.
    tables: of the rank's own pages."""
    count = len(cached.groups)
    states = [_page_of_states(cached, table, share) for table in tables[count:]]
    return _pages_of_groups(cached, tables[:count], share) + states


def describe_pages(cached: CachedLayers, pages: Sequence[CanonicalPage]) -> list[str]:
    """Describe pages by the layers of each group and the shapes of their parts, which are equal for
    every number of ranks."""
    layers = [",".join(map(str, sorted(group.layers))) for group in cached.groups]
    names = [*layers, *("states" for _ in pages[len(layers) :])]
    return [f"{name}:{page.describe()}" for name, page in zip(names, pages, strict=True)]


def _page_of_states(cached: CachedLayers, table: PageTable, share: Share) -> CanonicalPage:
    """Return the layout of a page of states. table: of the rank's own checkpoints."""
    offset, parts = 0, []
    segments = iter(table.segments)
    for index, layer in enumerate(cached.layers):
        if not isinstance(layer, StateLayer):
            continue
        attention = cached.facts[index].attention
        assert isinstance(attention, StateAttention), "layers with states have a net"
        for divided in _state_tensors(attention.net, share):
            segment = next(segments)
            own_offset = segment.offset
            unit = segment.size // sum(heads.own * size for heads, size in divided)
            for heads, size in divided:
                part = Part(heads, 1, size * unit, offset, own_offset)
                offset += heads.count * part.width
                own_offset += heads.own * part.width
                parts.append(part)
    return CanonicalPage(tuple(parts))


def _state_tensors(net: StateNet, share: Share) -> list[list[tuple[Heads, int]]]:
    """Return the heads of each part of a layer's matrices, if it has any, and of its convolution's
    tail, with the elements of a head, or of a channel of it."""
    values = Heads.of(net.value_heads, share)
    if not net.key_dim:
        return [[(values, net.value_dim)]]
    keys = Heads.of(net.key_heads, share), net.key_dim
    return [[(values, 1)], [keys, keys, (values, net.value_dim)]]


def _tensors_of(cached: CachedLayers, group: CacheGroup) -> Iterable[tuple[int, int, bool]]:
    """Yield the layer of each tensor of a group, the tokens of a block of it, and whether it has
    parts of each KV head."""
    for index in sorted(group.layers):
        layer = cached.layers[index]
        assert isinstance(layer, CachedAttention), "groups are of layers that keep tokens"
        for number, tensor in enumerate(layer.cached_tensors()):
            yield index, tensor.shape[1], number < layer.tensors_by_head


def _heads(cached: CachedLayers, index: int, share: Share) -> Heads:
    attention = cached.facts[index].attention
    assert isinstance(attention, GroupedAttention), "layers with keys by head have heads"
    return Heads.of(attention.heads.kv_count, share)
