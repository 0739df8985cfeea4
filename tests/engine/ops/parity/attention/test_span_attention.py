"""Spans are selected by their highest score, and attention sees the tokens of these alone.

The expected values are computed a token and a head at a time. The reference alone has the two
operations, `select_spans` and `span_attention`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from atom.model_ops.index_values import IndexCache, SpanIndexShape, SpanTokens
from atom.model_ops.values import Rotary
from tests.engine.ops.inputs import PagedCase, assert_rows_agree, paged_case

ROWS = [(30, 1), (5, 1), (64, 1), (9, 9), (50, 13)]
INDEX = SpanIndexShape(num_heads=2, dim=8, rope_dim=4, span=8, top_k=3, newest=1)


def places(case: PagedCase) -> list[tuple[int, int]]:
    """Return the row and the position of each token of the step."""
    starts, lengths = case.step.query_starts.tolist(), case.step.context_lens.tolist()
    return [
        (row, length - (starts[row + 1] - starts[row]) + number)
        for row, length in enumerate(lengths)
        for number in range(starts[row + 1] - starts[row])
    ]


def slots(case: PagedCase, row: int, length: int) -> torch.Tensor:
    """Return the cache slots of a row's first tokens."""
    at = torch.arange(length, device=case.q.device)
    size = case.cache.block_size
    return case.step.block_tables[row][at // size].long() * size + at % size


def attended(case: PagedCase, selected: torch.Tensor) -> torch.Tensor:
    """Compute the attention [T, Hq · D] to selected spans [T, Hkv, k] in float64."""
    out, group = torch.zeros_like(case.q), case.shape.num_heads // case.shape.num_kv_heads
    for token, (row, position) in enumerate(places(case)):
        own = slots(case, row, position + 1)
        k, v = (each.flatten(0, 1)[own] for each in (case.cache.k, case.cache.v))
        for head in range(case.shape.num_heads):
            chosen = selected[token, head // group]
            at = torch.arange(position + 1, device=own.device)
            seen = torch.isin(at // INDEX.span, chosen[chosen >= 0])
            weights = (k[seen, head // group] @ case.q[token, head] * case.shape.scale).softmax(0)
            out[token, head] = weights @ v[seen, head // group]
    return out.flatten(1)


@pytest.mark.parametrize("is_whole", [True, False], ids=["all-spans", "some-spans"])
def test_tokens_of_selected_spans_alone_are_attended_to(
    reference: Backend, device: torch.device, is_whole: bool
) -> None:
    case = paged_case(ROWS, device=device, dtype=torch.float64)
    draw = torch.Generator().manual_seed(2)
    chosen = []
    for _, position in places(case):
        spans = position // INDEX.span + 1
        heads = [torch.randperm(spans, generator=draw) for _ in range(case.shape.num_kv_heads)]
        heads = [each if is_whole else each[: INDEX.top_k] for each in heads]
        chosen.append(
            torch.stack([torch.nn.functional.pad(h, (0, 8 - len(h)), value=-1) for h in heads])
        )
    selected = torch.stack(chosen).to(device)
    found = reference.operations["span_attention"](
        case.q.clone(), case.shape, case.cache, (selected, INDEX), case.step
    )
    assert_rows_agree(found, attended(case, selected), torch.float32)
    if is_whole:
        everything = reference.operations["paged_attention"](*case.doubled)
        assert_rows_agree(found, everything, torch.float32)


def test_the_newest_and_the_highest_spans_are_selected(
    reference: Backend, device: torch.device
) -> None:
    case = paged_case(ROWS, device=device, dtype=torch.float32)
    at, draw = places(case), torch.Generator().manual_seed(3)
    count, blocks, size = len(at), case.cache.num_blocks, case.cache.block_size
    keys = torch.randn((blocks * size, INDEX.dim), generator=draw).to(device)
    own = torch.stack([slots(case, row, position + 1)[-1] for row, position in at])
    tokens = SpanTokens(
        torch.randn((count, INDEX.num_heads, INDEX.dim), generator=draw).to(device),
        torch.randn((count, INDEX.dim), generator=draw).to(device),
    )
    still = torch.cat((torch.ones(1, 2), torch.zeros(1, 2)), dim=1).to(device)  # no rotation
    rotary = Rotary(still, torch.zeros(count, dtype=torch.int64, device=device))
    cache = IndexCache(keys.clone().view(blocks, size, INDEX.dim))
    found = reference.operations["select_spans"](
        tokens, INDEX, rotary, cache, replace(case.step, slot_mapping=own)
    )
    keys[own] = tokens.keys
    assert torch.equal(cache.keys.flatten(0, 1), keys)
    for token, (row, position) in enumerate(at):
        scores = keys[slots(case, row, position + 1)] @ tokens.q[token].T  # [length, heads]
        for head in range(INDEX.num_heads):
            best = [piece.max().item() for piece in scores[:, head].split(INDEX.span)]
            others = sorted(range(len(best) - 1), key=lambda span: -best[span])
            wanted = {len(best) - 1, *others[: INDEX.top_k - 1]}
            assert set(found[token, head].tolist()) - {-1} == wanted
