"""Drafts, their places and what holds of them equal the reference's, padding rows included."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from atom.model_ops.backends.interface import Backend
from atom.model_ops.drafts import Drafts, Lookup
from atom.model_ops.slots import SlotTensors
from tests.engine.ops.inputs import slot_tensors

SLOTS, MAX_BLOCKS, COLUMNS = 7, 100, 1500


def state_of(device: torch.device, groups: int = 1) -> SlotTensors:
    """Texts of few different tokens, of one token to more than a stretch of a search."""
    state = slot_tensors(SLOTS, MAX_BLOCKS, device, groups)
    alphabet = torch.tensor([2, 3, 4, 9, 2, 40, 3, 2]).unsqueeze(1)
    tokens = (torch.randint(0, 1 << 20, (SLOTS + 1, COLUMNS)) % alphabet).to(torch.int32)
    lengths = torch.tensor([0, 1, 30, 1100, 1400, 1399, 1024, 0])
    last = tokens.gather(1, lengths.unsqueeze(1)).squeeze(1).long()
    return replace(
        state, tokens=tokens.to(device), num_computed=lengths.to(device), last_token=last.to(device)
    )


def rows_of(takes_padding: bool, device: torch.device) -> torch.Tensor:
    padding = [SLOTS, -1] if takes_padding else []
    return torch.tensor([3, 0, *padding, 1, 2, 6, 4, 5], device=device)


@pytest.mark.parametrize("lookup", [Lookup(1, 1, 1), Lookup(2, 8, 5), Lookup(3, 4, 7)])
def test_drafts(
    backend: Backend, reference: Backend, device: torch.device, takes_padding: bool, lookup: Lookup
) -> None:
    state = state_of(device)
    slots = rows_of(takes_padding, device)
    got = backend.operations["draft_ngrams"](slots, state, lookup)
    real = (slots >= 0) & (slots < SLOTS)
    want = reference.operations["draft_ngrams"](slots[real], state, lookup)
    assert torch.equal(got.counts[real], want.counts)
    assert got.counts[~real].tolist() == [0] * int((~real).sum())
    assert want.counts.any()
    found = want.counts > 0
    assert torch.equal(got.token_ids[real][found], want.token_ids[found])
    assert ((got.token_ids >= 0) & (got.token_ids < 40)).all()  # tokens that can be embedded


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


def test_what_holds(
    backend: Backend, reference: Backend, device: torch.device, takes_padding: bool
) -> None:
    state, twin = state_of(device), state_of(device)
    assert state.tokens is not None
    assert twin.tokens is not None
    twin.tokens.copy_(state.tokens)
    slots = rows_of(takes_padding, device)
    drafts = Drafts(
        torch.randint(0, 2, (len(slots), 5), device=device),
        torch.randint(0, 6, (len(slots),), device=device),
    )
    drawn = torch.randint(0, 2, (len(slots), 6), device=device)
    drawn[0, :5] = drafts.token_ids[0]
    drafts.counts[0] = 5
    got = backend.operations["accept_drafts"](slots, drawn, drafts, state)
    want = reference.operations["accept_drafts"](slots, drawn, drafts, twin)
    assert torch.equal(got, want)
    assert got[0] == 6
    assert torch.equal(state.tokens[:SLOTS], twin.tokens[:SLOTS])


def test_without_drafts_each_row_gets_one_token(backend: Backend, device: torch.device) -> None:
    state = state_of(device)
    none = Drafts(torch.zeros((1, 0), dtype=torch.int64, device=device), torch.zeros(1).long())
    drawn = torch.tensor([[7]], device=device)
    slots = torch.tensor([2], device=device)
    counts = backend.operations["accept_drafts"](
        slots, drawn, replace(none, counts=none.counts.to(device)), state
    )
    assert counts.tolist() == [1]
    assert state.tokens is not None
    assert state.tokens[2, 31] == 7
