"""Drafts, their places and what holds of them equal the reference's, padding rows included."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.pinned_ring import RING_ENTRIES, empty_ring
from atom.model_ops.drafts import DraftLayout, Drafts, DrawnRuns, Lookup, no_drafts
from atom.model_ops.slots import SlotTensors
from atom.utils.forward_context import DecodeRuns
from tests.engine.ops.inputs import slot_tensors

SLOTS, MAX_BLOCKS, COLUMNS = 7, 100, 4600


def state_of(device: torch.device, groups: int = 1) -> SlotTensors:
    """Texts of few different tokens, of one token to more than a chunk of a search."""
    state = slot_tensors(SLOTS, MAX_BLOCKS, device, groups)
    alphabet = torch.tensor([2, 3, 4, 9, 2, 40, 30, 2]).unsqueeze(1)
    tokens = (torch.randint(0, 1 << 20, (SLOTS + 1, COLUMNS)) % alphabet).to(torch.int32)
    # A period, and what was said long before.
    tokens[4] = torch.arange(COLUMNS) % 13 + 2
    tokens[6, 4481:4501] = tokens[6, 100:120]
    lengths = torch.tensor([0, 1, 30, 1100, 4400, 2049, 4500, 0])
    last = tokens.gather(1, lengths.unsqueeze(1)).squeeze(1).long()
    return replace(
        state, tokens=tokens.to(device), num_computed=lengths.to(device), last_token=last.to(device)
    )


def rows_of(takes_padding: bool, device: torch.device) -> torch.Tensor:
    padding = [SLOTS, -1] if takes_padding else []
    return torch.tensor([3, 0, *padding, 1, 2, 6, 4, 5], device=device)


@pytest.mark.parametrize("lookup", [(1, 1, 1), (2, 8, 5), (3, 4, 7), (9, 20, 4)])
def test_drafts(
    backend: Backend,
    reference: Backend,
    device: torch.device,
    takes_padding: bool,
    lookup: tuple[int, int, int],
) -> None:
    state, found = state_of(device), Lookup(*lookup[:2])
    slots = rows_of(takes_padding, device)
    real = (slots >= 0) & (slots < SLOTS)
    wanted = torch.arange(len(slots), device=device) % (lookup[2] + 1)
    got, want = (no_drafts(len(rows), lookup[2], device) for rows in (slots, slots[real]))
    got.token_ids.fill_(-1)
    backend.operations["draft_ngrams"](slots, wanted, state, found, got)
    reference.operations["draft_ngrams"](slots[real], wanted[real], state, found, want)
    assert torch.equal(got.counts[real], want.counts)
    assert got.counts[~real].tolist() == [0] * int((~real).sum())
    assert want.counts.any()
    drafted = want.counts > 0
    assert torch.equal(got.token_ids[real][drafted], want.token_ids[drafted])
    assert ((got.token_ids >= 0) & (got.token_ids < 40)).all()  # tokens that can be embedded


@pytest.mark.parametrize("tokens", [11, 40, 1030])
def test_where_tokens_of_rows_stand(
    backend: Backend, reference: Backend, device: torch.device, tokens: int
) -> None:
    state = state_of(device)
    slots = torch.tensor([3, 0, 6, 4, 1, SLOTS, SLOTS], device=device)
    wanted = torch.tensor([2, 0, 3, 0, 1, 0, 0], device=device)
    layouts = []
    for found in (backend, reference):
        columns = [torch.full((tokens,), -7, device=device) for _ in range(3)]
        runs = DecodeRuns(torch.full((8,), -7, dtype=torch.int32, device=device), 4)
        layout = DraftLayout(slots, wanted, torch.full_like(slots, -7), *columns, runs=runs)
        found.operations["lay_out_drafts"](layout, state)
        layouts.append(layout)
    got, want = layouts
    for name in ("token_slots", "row", "offset"):
        assert torch.equal(getattr(got, name), getattr(want, name)), name
    assert ((got.first >= 0) & (got.first < tokens)).all()
    assert got.runs.starts.tolist() == [0, 3, 4, 8, 9, 11, 11, 11]
    assert torch.equal(got.runs.starts, want.runs.starts)
    rest = tokens - 11
    assert got.first.tolist()[:5] == [0, 3, 4, 8, 9]
    assert got.token_slots.tolist() == [3, 3, 3, 0, 6, 6, 6, 6, 4, 1, 1] + [SLOTS] * rest
    assert got.row.tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 3, 4, 4] + [0] * rest
    assert got.offset.tolist() == [0, 1, 2, 0, 0, 1, 2, 3, 0, 0, 1] + [0] * rest


@pytest.mark.parametrize("groups", [1, 3])
def test_places(backend: Backend, reference: Backend, device: torch.device, groups: int) -> None:
    state = state_of(device, groups)
    slots = torch.tensor([3, 3, 3, 0, 0, SLOTS, -1, 2], device=device)
    offsets = torch.tensor([0, 1, 2, 0, 1, 1, 0, 3], device=device)
    token_ids = torch.arange(100, 108, device=device)
    for block_size in (16, 48):
        arguments = (slots, offsets, token_ids, state, block_size)
        got = backend.operations["prepare_drafted"](*arguments)
        want = reference.operations["prepare_drafted"](*arguments)
        for name in (field.name for field in fields(want) if field.name != "block_tables"):
            assert torch.equal(getattr(got, name), getattr(want, name)), name
        for row, context in enumerate(want.context_lens.tolist()):
            used = -(-context // block_size)
            one, other = got.block_tables[:, row, :used], want.block_tables[:, row, :used]
            assert torch.equal(one, other)


@pytest.mark.parametrize("answered", [False, True])
def test_what_holds(
    backend: Backend,
    reference: Backend,
    device: torch.device,
    takes_padding: bool,
    answered: bool,
) -> None:
    state = state_of(device)
    twin = copy_of(state)
    slots = rows_of(takes_padding, device)
    real = (slots >= 0) & (slots < SLOTS)
    drafts = Drafts(
        torch.randint(0, 2, (len(slots), 5), device=device),
        torch.randint(0, 6, (len(slots),), device=device),
    )
    drafts.counts[0], drafts.counts[~real] = 5, 0
    first = (1 + drafts.counts).cumsum(0) - 1 - drafts.counts
    drawn = torch.randint(0, 2, (int((1 + drafts.counts).sum()),), device=device)
    drawn[:5] = drafts.token_ids[0]
    runs, found = DrawnRuns(slots, first, drawn), []
    for operations, slot_state in ((backend.operations, state), (reference.operations, twin)):
        ring = empty_ring(slot_state, several_tokens=80) if answered else None
        if ring is not None:
            ring.turn[1] = RING_ENTRIES - 1
        found.append((operations["accept_drafts"](runs, drafts, slot_state, ring), ring))
    (got, ring), (want, expected) = found
    assert torch.equal(got[real], want[real])
    assert got[0] == 6
    assert state.tokens is not None
    assert twin.tokens is not None
    for name in ("tokens", "last_token", "num_computed"):
        mine, theirs = getattr(state, name), getattr(twin, name)
        assert torch.equal(mine[:SLOTS], theirs[:SLOTS]), name
    if ring is not None and expected is not None:
        said, asked = ring.answers[RING_ENTRIES - 1], expected.answers[RING_ENTRIES - 1]
        of_rows = torch.repeat_interleave(real, 1 + drafts.counts).cpu()
        assert said[0, : len(drawn)][of_rows].tolist() == asked[0, : len(drawn)][of_rows].tolist()
        on_host = real.cpu()
        assert torch.equal(said[1:, : len(slots)][:, on_host], asked[1:, : len(slots)][:, on_host])
        assert said[2, 0] == 5


def copy_of(state: SlotTensors) -> SlotTensors:
    tensors = {field.name: getattr(state, field.name) for field in fields(state)}
    return replace(
        state,
        **{
            name: value.clone()
            for name, value in tensors.items()
            if isinstance(value, torch.Tensor)
        },
    )


def test_without_drafts_each_row_gets_one_token(backend: Backend, device: torch.device) -> None:
    state = state_of(device)
    drawn = DrawnRuns(*torch.tensor([[2], [0], [7]], device=device))
    counts = backend.operations["accept_drafts"](drawn, no_drafts(1, 0, device), state)
    assert counts.tolist() == [1]
    assert state.tokens is not None
    assert state.tokens[2, 31] == 7
    assert state.last_token[2] == 7
    assert state.num_computed[2] == 31


def test_a_plain_step_keeps_its_tokens(backend: Backend, device: torch.device) -> None:
    state = state_of(device)
    slots = torch.tensor([2, 4], device=device)
    backend.operations["commit_tokens"](slots, torch.tensor([50, 60], device=device), state)
    assert state.tokens is not None
    assert [state.tokens[2, 31].item(), state.tokens[4, 4401].item()] == [50, 60]
