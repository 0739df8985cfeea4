"""Attention to a window and to entries that sum up tokens, in plain PyTorch (DeepSeek V4).

Everything is read back from the cache, a row's own tokens too, so that chunks of any size give the
same numbers. Entries of all rows are written before any row attends: rows may be a token and its
drafts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from atom.model_ops.backends.torch_ref.dense import rms_norm
from atom.model_ops.compressed_attention import (
    CompressedCache,
    CompressedLayer,
    CompressedShape,
    CompressedTokens,
    EntryWeight,
)
from atom.model_ops.index_values import IndexShape
from atom.model_ops.values import Rotary
from atom.sizing.overheads import MOST_ENTRY_SCORES
from atom.utils.forward_context import AttentionMetaData


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a step: which tokens of the step are its own, how many it has in all, and its blocks
    of the window and of entries."""

    own: slice
    length: int
    windows: torch.Tensor
    entries: torch.Tensor

    @property
    def before(self) -> int:
        """Count the tokens before its own."""
        return self.length - (self.own.stop - self.own.start)


def compressed_attention(
    tokens: CompressedTokens,
    layer: CompressedLayer,
    rotary: Rotary,
    cache: CompressedCache,
    steps: tuple[AttentionMetaData, AttentionMetaData],
) -> torch.Tensor:
    shape, turns = layer.shape, rotary.cos_sin[rotary.positions]
    key, summed = tokens.kept.tensor_split([shape.head_dim], dim=1)
    key = _turned(key.unsqueeze(1), turns).squeeze(1)
    slots = steps[0].slot_mapping
    real = slots >= 0
    kept, size = torch.cat((key, summed), dim=1)[real], cache.block_size
    cache.window[slots[real] // size, slots[real] % size] = kept.to(cache.window.dtype)
    rows = list(_rows(steps))
    if shape.rate:
        for row in rows:
            _complete_entries(row, layer, rotary, cache)
    q, asking = _turned(tokens.q, turns), None
    if tokens.asking is not None:
        asking = _turned(tokens.asking, turns)
    out = torch.zeros_like(q)
    for row in rows:
        for own in _pieces(row, shape):
            chosen = None
            if asking is not None and tokens.weights is not None:
                chosen = _selected(row, own, (asking, tokens.weights), (shape, cache))
            out[own] = _attend(q[own], (row, own), chosen, shape, cache)
    cos, sin = turns.chunk(2, dim=-1)
    return _turned(out, torch.cat((cos, -sin), dim=-1)).flatten(1)


def _rows(steps: tuple[AttentionMetaData, AttentionMetaData]) -> Iterator[_Row]:
    windows, entries = steps
    starts, lengths = windows.query_starts.tolist(), windows.context_lens.tolist()
    for row, length in enumerate(lengths):
        if length:  # others are padding
            tables = windows.block_tables[row].long(), entries.block_tables[row].long()
            yield _Row(slice(starts[row], starts[row + 1]), length, *tables)


def _turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Rotate the last elements of x [T, heads, D], neighbours in pairs; turns [T, R] float32:
    cosines, then sines of the pairs."""
    rope_dim = turns.shape[1]
    cos, sin = turns.unsqueeze(1).chunk(2, dim=-1)
    still, turning = x.tensor_split([x.shape[2] - rope_dim], dim=-1)
    first, second = turning.float().unflatten(-1, (-1, 2)).unbind(-1)
    pairs = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((still, pairs.flatten(-2).to(x.dtype)), dim=-1)


def _complete_entries(
    row: _Row, layer: CompressedLayer, rotary: Rotary, cache: CompressedCache
) -> None:
    """Write the entries whose last token is one of the row's own."""
    shape, rate = layer.shape, layer.shape.rate
    first, end = row.before // rate, row.length // rate
    if first == end:
        return
    begin = max(0, first - (shape.series - 1))
    at = torch.arange(begin * rate, end * rate, device=cache.window.device)
    kept = cache.window[row.windows[at // cache.block_size], at % cache.block_size]
    sizes = [shape.series * size for size in (shape.head_dim, shape.index_dim) for _ in range(2)]
    added, counts, index_added, index_counts = kept[:, shape.head_dim :].split(sizes, dim=1)
    numbers = torch.arange(first, end, device=at.device)
    turns = rotary.cos_sin[numbers * rate]
    places = _places(row, numbers, rate, cache.block_size)
    for weight, stored, own in (
        (layer.entries, cache.entries, (added, counts)),
        (layer.index, cache.index, (index_added, index_counts)),
    ):
        if weight is not None and stored is not None:
            sums = _summed(*own, weight, shape)[-len(numbers) :]
            stored[places] = _turned(sums.unsqueeze(1), turns).squeeze(1).to(stored.dtype)


def _summed(
    added: torch.Tensor, counts: torch.Tensor, weight: EntryWeight, shape: CompressedShape
) -> torch.Tensor:
    """Sum up tokens [n · rate, series · D] into entries [n, D]. With two series, a token's first
    contribution goes into the entry after its own; the first entry is whole only if it begins the
    sequence."""
    by_entry = (-1, shape.rate)
    added = added.unflatten(0, by_entry)
    counts = counts.unflatten(0, by_entry) + weight.position_bias
    if shape.series > 1:
        added, counts = _with_those_before(added, 0.0), _with_those_before(counts, -torch.inf)
    shares = counts.softmax(dim=1, dtype=torch.float32).to(added.dtype)
    return rms_norm((added * shares).sum(dim=1), weight.norm)


def _with_those_before(x: torch.Tensor, none: float) -> torch.Tensor:
    """Put the first series of the entry before in front of an entry's own second one: [n, rate,
    2 · D] → [n, 2 · rate, D]."""
    first, second = x.chunk(2, dim=-1)
    before = torch.cat((torch.full_like(first[:1], none), first[:-1]))
    return torch.cat((before, second), dim=1)


def _places(
    row: _Row, numbers: torch.Tensor, rate: int, block_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find entries by their numbers [n]: blocks, and where in these."""
    blocks = ((numbers + 1) * rate - 1) // block_size
    return row.entries[blocks], numbers - blocks * block_size // rate


def _pieces(row: _Row, shape: CompressedShape) -> Iterator[slice]:
    """Cut a row's tokens so that their scores are not too many."""
    wide = row.length if shape.rate == 0 else row.length // shape.rate + shape.mask.size
    heads = max(shape.num_heads, shape.index.num_heads if shape.index else 0)
    count = max(1, MOST_ENTRY_SCORES // (heads * max(1, min(wide, row.length))))
    for first in range(row.own.start, row.own.stop, count):
        yield slice(first, min(first + count, row.own.stop))


def _positions(row: _Row, own: slice, device: torch.device) -> torch.Tensor:
    """Return the positions of the row's tokens [n, 1]."""
    at = torch.arange(own.start, own.stop, device=device)
    return (at - row.own.start + row.before).unsqueeze(1)


def _complete(row: _Row, own: slice, rate: int, device: torch.device) -> torch.Tensor:
    """Return a mask of the entries of a row that are complete up to each of its tokens [n,
    entries]."""
    numbers = torch.arange(row.length // rate, device=device)
    return numbers < (_positions(row, own, device) + 1) // rate


def _selected(
    row: _Row,
    own: slice,
    asking: tuple[torch.Tensor, torch.Tensor],
    of: tuple[CompressedShape, CompressedCache],
) -> torch.Tensor | None:
    """Return a mask of the entries that an indexer selects for each token [n, entries]; None if it
    selects all. asking: queries and weights of the step."""
    (shape, cache), (q, weights) = of, asking
    index, stored = shape.index, cache.index
    assert index is not None
    assert stored is not None
    count = row.length // shape.rate
    if count <= index.top_k:
        return None
    numbers = torch.arange(count, device=q.device)
    keys = stored[_places(row, numbers, shape.rate, cache.block_size)]
    scores = _index_scores(q[own], weights[own], keys, index)
    scores.masked_fill_(~_complete(row, own, shape.rate, q.device), -torch.inf)
    # Stable, so that of equal scores the first are selected.
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    return chosen.scatter_(1, order[:, : index.top_k], True)


def _index_scores(
    q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, index: IndexShape
) -> torch.Tensor:
    """Score q [n, heads, dim] against keys [entries, dim] → [n, entries] float32."""
    products = torch.matmul(q.float(), keys.float().t()).relu_() * index.dim**-0.5
    return torch.einsum("nh,nhs->ns", weights.float() * index.num_heads**-0.5, products)


def _attend(
    q: torch.Tensor,
    at: tuple[_Row, slice],
    chosen: torch.Tensor | None,
    shape: CompressedShape,
    cache: CompressedCache,
) -> torch.Tensor:
    """Attend with queries q [n, Hq, D] of some of a row's tokens."""
    (row, own), device, size = at, q.device, cache.block_size
    position = _positions(row, own, device)
    first = max(0, int(shape.mask.first_seen(int(position[0]))))
    tokens = torch.arange(first, int(position[-1]) + 1, device=device)
    keys = cache.window[row.windows[tokens // size], tokens % size, : shape.head_dim]
    seen = shape.mask.sees(position, tokens)
    if shape.rate and row.length >= shape.rate:
        assert cache.entries is not None
        complete = _complete(row, own, shape.rate, device)
        complete = complete if chosen is None else complete & chosen
        used = complete.any(dim=0).nonzero().squeeze(1)
        entries = cache.entries[_places(row, used, shape.rate, size)]
        keys = torch.cat((keys, entries))
        seen = torch.cat((seen, complete[:, used]), dim=1)
    keys = keys.to(q.dtype)
    scores = torch.matmul(q, keys.t()) * shape.scale  # [n, Hq, keys]
    scores = scores.float().masked_fill_(~seen.unsqueeze(1), -torch.inf)
    assert shape.sinks is not None
    sinks = shape.sinks.view(1, -1, 1).expand(len(q), -1, 1)
    weights = torch.cat((scores, sinks), dim=-1).softmax(dim=-1)[..., :-1]
    return torch.matmul(weights.to(q.dtype), keys)
