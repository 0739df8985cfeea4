"""Attention to a window and to entries, by the reference wherever there is a device, as no other
backend has it: equal scores, rows of one step in any order, padding, and narrow elements.

What models compute with it is held against transformers elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from atom.model_ops.compressed_attention import (
    CompressedCache,
    CompressedLayer,
    CompressedShape,
    CompressedTokens,
    EntryWeight,
)
from atom.model_ops.index_values import IndexShape
from atom.model_ops.values import NormWeight, Rotary
from atom.sizing.mask_rule import sliding_window
from atom.utils.forward_context import AttentionMetaData

HEADS, SIZE, ASKING, DIM, RATE, BLOCK, TOP = 2, 8, 3, 6, 4, 16, 2
SHAPE = CompressedShape(
    num_heads=HEADS,
    head_dim=SIZE,
    rope_dim=4,
    scale=SIZE**-0.5,
    mask=sliding_window(5),
    rate=RATE,
    index=IndexShape(ASKING, DIM, 4, TOP),
)
WINDOWS, ENTRIES = (5, 2, 7), (1, 6, 3)
Attention = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def on_device(device: torch.device) -> Iterator[None]:
    with device:
        yield


@pytest.fixture
def attention(reference: Backend) -> Attention:
    return reference.operations["compressed_attention"]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    return values.to(torch.get_default_device())


def layer(dtype: torch.dtype = torch.float32) -> CompressedLayer:
    def weight(size: int, seed: int) -> EntryWeight:
        norm = NormWeight(drawn(size, seed=seed).to(dtype), 1e-6)
        return EntryWeight(drawn(RATE, 2 * size, seed=seed + 1), norm)

    shape = replace(SHAPE, sinks=torch.tensor([0.3, -0.2]))
    return CompressedLayer(shape, weight(SIZE, 3), weight(DIM, 5))


def rotary(length: int) -> Rotary:
    angles = torch.outer(torch.arange(length).float(), torch.tensor([1.0, 0.1]))
    return Rotary(torch.cat((angles.cos(), angles.sin()), dim=1), torch.arange(length))


def tokens_of(length: int, dtype: torch.dtype = torch.float32) -> CompressedTokens:
    width = SIZE + 4 * (SIZE + DIM)
    parts = (
        drawn(length, HEADS, SIZE), drawn(length, width, seed=1),
        drawn(length, ASKING, DIM, seed=2), drawn(length, ASKING, seed=7),
    )  # fmt: skip
    return CompressedTokens(*(part.to(dtype) for part in parts))


def cache_of(dtype: torch.dtype = torch.float32, blocks: int = 8) -> CompressedCache:
    """Filled with what a block before left there, which is no number."""
    shapes = ((BLOCK, SIZE + 4 * (SIZE + DIM)), (BLOCK // RATE, SIZE), (BLOCK // RATE, DIM))
    return CompressedCache(*(torch.full((blocks, *shape), torch.nan).to(dtype) for shape in shapes))


def part(tokens: CompressedTokens, own: slice) -> CompressedTokens:
    assert tokens.asking is not None
    assert tokens.weights is not None
    return CompressedTokens(
        tokens.q[own], tokens.kept[own], tokens.asking[own], tokens.weights[own]
    )


def step(first: int, end: int, blocks: tuple[int, ...], decodes: bool = False) -> AttentionMetaData:
    """Tokens first to end of one sequence, as a chunk, or as rows of one token each."""
    at, tables = torch.arange(first, end), torch.tensor(blocks).int()
    slots = tables[at // BLOCK].long() * BLOCK + at % BLOCK
    count = end - first
    starts = torch.arange(count + 1) if decodes else torch.tensor([0, count])
    lengths = at + 1 if decodes else torch.tensor([end])
    return AttentionMetaData(
        query_starts=starts.int(),
        context_lens=lengths.int(),
        block_tables=tables.expand(len(lengths), -1),
        slot_mapping=slots,
        num_decodes=count if decodes else 0,
        max_query_len=1 if decodes else count,
        max_context_len=end,
    )


def attended(
    attention: Attention, chunks: list[int], tokens: CompressedTokens, made: CompressedLayer
) -> torch.Tensor:
    length = sum(chunks)
    cache, found, first = cache_of(tokens.q.dtype), [], 0
    for count in chunks:
        own = slice(first, first + count)
        steps = (step(own.start, own.stop, WINDOWS), step(own.start, own.stop, ENTRIES))
        turning = replace(rotary(length), positions=torch.arange(own.start, own.stop))
        found.append(attention(part(tokens, own), made, turning, cache, steps))
        first = own.stop
    return torch.cat(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunks", [[1] * 37, [7, 16, 14], [3, 1, 33]])
def test_chunks_of_any_size_find_the_same(
    attention: Attention, chunks: list[int], dtype: torch.dtype
) -> None:
    tokens, made = tokens_of(37, dtype), layer(dtype)
    whole = attended(attention, [37], tokens, made)
    assert not whole.isnan().any()
    assert torch.allclose(attended(attention, chunks, tokens, made), whole, atol=1e-5)


def test_a_token_and_its_drafts_are_rows_in_any_order(attention: Attention) -> None:
    """Entries are complete before any row attends, also those that another row completes."""
    tokens, made = tokens_of(20), layer()
    whole, cache = attended(attention, [20], tokens, made), cache_of()
    before = step(0, 14, WINDOWS), step(0, 14, ENTRIES)
    turning = replace(rotary(20), positions=torch.arange(14))
    attention(part(tokens, slice(0, 14)), made, turning, cache, before)
    order = [4, 1, 5, 0, 2, 3]
    rows = [step(14, 20, tables, decodes=True) for tables in (WINDOWS, ENTRIES)]
    steps = tuple(
        replace(each, context_lens=each.context_lens[order], slot_mapping=each.slot_mapping[order])
        for each in rows
    )
    at = torch.arange(14, 20)[order]
    assert tokens.asking is not None
    assert tokens.weights is not None
    own = CompressedTokens(tokens.q[at], tokens.kept[at], tokens.asking[at], tokens.weights[at])
    turning = replace(rotary(20), positions=at)
    found = attention(own, made, turning, cache, (steps[0], steps[1]))
    assert torch.allclose(found, whole[at], atol=1e-6)


def test_of_equal_scores_the_first_entries_are_attended_to(attention: Attention) -> None:
    """With an indexer of no opinion, as if there were no entries behind the first ones."""
    tokens, length = tokens_of(36), 36
    assert tokens.weights is not None
    silent = replace(tokens, weights=torch.zeros_like(tokens.weights))
    made = layer()
    found = attended(attention, [length], silent, made)[-1]
    cache = cache_of()
    steps = step(0, length, WINDOWS), step(0, length, ENTRIES)
    attention(silent, made, rotary(length), cache, steps)
    assert cache.entries is not None
    assert made.shape.sinks is not None
    keys = [cache.window[WINDOWS[at // BLOCK], at % BLOCK, :SIZE] for at in range(31, 36)]
    keys += [cache.entries[ENTRIES[0], number] for number in range(TOP)]
    stacked = torch.stack(keys)
    q, cos_sin = tokens.q[-1], rotary(length).cos_sin[-1]
    turned = _turned(q, cos_sin, 1.0)
    scores = torch.cat((turned @ stacked.t() * SHAPE.scale, made.shape.sinks[:, None]), dim=1)
    answer = scores.softmax(dim=1)[:, :-1] @ stacked
    assert torch.allclose(found, _turned(answer, cos_sin, -1.0).flatten(), atol=1e-5)


def test_padding_writes_nothing(attention: Attention) -> None:
    tokens, cache = part(tokens_of(2), slice(0, 2)), cache_of()
    nothing = torch.zeros(1, dtype=torch.int32)
    steps = tuple(
        replace(
            step(0, 2, tables),
            query_starts=torch.tensor([0, 2, 2]).int(),
            context_lens=torch.cat((torch.tensor([2]).int(), nothing)),
            block_tables=torch.tensor(tables).int().expand(2, -1),
            slot_mapping=torch.tensor([5 * BLOCK, -1]),
        )
        for tables in (WINDOWS, ENTRIES)
    )
    attention(tokens, layer(), rotary(2), cache, (steps[0], steps[1]))
    written = ~cache.window.isnan().any(dim=2)
    assert written.nonzero().tolist() == [[5, 0]]


def _turned(x: torch.Tensor, cos_sin: torch.Tensor, sign: float) -> torch.Tensor:
    """Turn the last four elements, two neighbours each, of x [heads, D]."""
    found = x.clone()
    for pair in range(2):
        cos, sin = cos_sin[pair], sign * cos_sin[2 + pair]
        first, second = x[:, 4 + 2 * pair], x[:, 5 + 2 * pair]
        found[:, 4 + 2 * pair] = first * cos - second * sin
        found[:, 5 + 2 * pair] = second * cos + first * sin
    return found
