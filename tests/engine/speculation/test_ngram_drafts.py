"""Drafts by look-up in a row's own tokens, against a search that a reader can follow."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
import torch

from atom.model_ops.backends.torch_cpu import ngram_drafts as on_cpu
from atom.model_ops.backends.torch_ref import drafting
from atom.model_ops.drafts import Drafts, DrawnRuns, Lookup, no_drafts
from atom.model_ops.slots import SlotSampling, SlotTensors
from benchmarks.draft_policy import look_up

Drafted = Callable[[list[list[int]], Lookup, int], list[list[int]]]


def state_of(rows: list[list[int]], width: int = 40) -> SlotTensors:
    """Slots with these tokens, the last of each its newest."""
    count = len(rows) + 1
    tokens = torch.full((count, width), 99, dtype=torch.int32)  # what is behind belongs to no row
    for slot, row in enumerate(rows):
        tokens[slot, : len(row)] = torch.tensor(row)
    columns = torch.zeros(count)
    return SlotTensors(
        last_token=torch.tensor([*(row[-1] for row in rows), 0]),
        num_computed=torch.tensor([*(len(row) - 1 for row in rows), 0]),
        block_tables=torch.zeros((count, 4), dtype=torch.int32),
        sampling=SlotSampling(columns, columns.long(), columns.long(), columns, columns),
        tokens=tokens,
    )


@pytest.fixture(params=[drafting, on_cpu], ids=["torch_ref", "torch_cpu"])
def drafted(request: pytest.FixtureRequest) -> Drafted:
    """The drafts of rows, by a backend."""
    return partial(drafts_of, request.param.draft_ngrams)


def drafts_of(
    draft_ngrams: Callable[..., None], rows: list[list[int]], lookup: Lookup, num_drafts: int
) -> list[list[int]]:
    drafts = no_drafts(len(rows), num_drafts, torch.device("cpu"))
    wanted = torch.full((len(rows),), num_drafts)
    draft_ngrams(torch.arange(len(rows)), wanted, state_of(rows), lookup, drafts)
    pairs = zip(drafts.token_ids.tolist(), drafts.counts.tolist(), strict=True)
    return [tokens[:count] for tokens, count in pairs]


@pytest.mark.parametrize("seed", range(60))
def test_drafts_are_what_followed_the_longest_newest_match(drafted: Drafted, seed: int) -> None:
    draw = random.Random(seed)
    rows = [[draw.randrange(2 + seed % 3) for _ in range(draw.randrange(1, 40))] for _ in range(12)]
    fewest = draw.randrange(1, 4)
    lookup, count = Lookup(fewest, fewest + draw.randrange(5)), draw.randrange(1, 9)
    assert drafted(rows, lookup, count) == [look_up(row, lookup, count) for row in rows]


def test_a_period_goes_on_in_the_drafts(drafted: Drafted) -> None:
    assert drafted([[5, 1, 2, 3, 1, 2, 3]], Lookup(2, 8), 7) == [[1, 2, 3, 1, 2, 3, 1]]


def test_tokens_of_others_are_no_match(drafted: Drafted) -> None:
    assert drafted([[1, 2, 3], [1, 2], [7]], Lookup(1, 4), 2) == [[], [], []]


def test_tokens_that_look_alike_across_their_bytes_are_no_match(drafted: Drafted) -> None:
    # 0x00010000 0x00010000 has the bytes of 1 within.
    assert drafted([[65536, 65536, 1]], Lookup(1, 4), 2) == [[]]


def test_a_row_gets_what_it_drew_up_to_the_first_other_token() -> None:
    state = state_of([[4, 5], [4, 5, 6], [4]])
    drafts = Drafts(torch.tensor([[1, 2, 3], [1, 2, 3], [8, 8, 8]]), torch.tensor([3, 2, 0]))
    drawn = torch.tensor([1, 9, 3, 7, 1, 2, 3, 8])
    runs = DrawnRuns(torch.tensor([0, 1, 2]), torch.tensor([0, 4, 7]), drawn)
    counts = drafting.accept_drafts(runs, drafts, state)
    assert counts.tolist() == [2, 3, 1]
    assert state.tokens is not None
    assert state.tokens[:3, :7].tolist() == [
        [4, 5, 1, 9, 99, 99, 99], [4, 5, 6, 1, 2, 3, 99], [4, 8, 99, 99, 99, 99, 99]
    ]  # fmt: skip


def test_drafted_tokens_stand_one_behind_the_other() -> None:
    state = state_of([[4, 5, 6], [7] * 20])
    state.block_tables[:2] = torch.tensor([[3, 5, 0, 0], [2, 8, 0, 0]])
    padding = state.padding_slot
    slots = torch.tensor([0, 0, 1, 1, padding])
    placed = drafting.prepare_drafted(
        slots, torch.tensor([0, 1, 0, 1, 1]), torch.tensor([50, 51, 52, 53, 54]), state, 16
    )
    assert placed.input_ids.tolist() == [6, 51, 7, 53, 0]
    assert placed.positions.tolist() == [2, 3, 19, 20, 0]
    assert placed.context_lens.tolist() == [3, 4, 20, 21, 0]
    assert placed.slot_mapping.tolist() == [[50, 51, 131, 132, -1]]
    assert placed.sample_positions.tolist()[:4] == [3, 4, 20, 21]
