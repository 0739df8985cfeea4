# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Drafts of rows' own tokens, and which of them hold, without a word from the host.

A row is searched in stretches, a program each; the longest and newest match wins by one atomic
maximum. Nothing depends on how long rows are but the programs that find nothing to do.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import next_power_of_2
from atom.model_ops.backends.triton_ops.steps.decode_state import prepare_rows
from atom.model_ops.drafts import Drafts, Lookup
from atom.model_ops.slots import DecodeInputs, SlotTensors

_STRETCH = 1024
# A match is its length above and its end below these bits.
_END_BITS = tl.constexpr(32)
_END_MASK = tl.constexpr(2**32 - 1)


@triton.jit
def _slot_of(slots_ptr, row, padding_slot):
    """A row's slot, and whether the row is more than padding."""
    slot = tl.load(slots_ptr + row).to(tl.int64)
    return slot, (slot >= 0) & (slot != padding_slot)


@triton.jit
def _match_kernel(
    slots_ptr, tokens_ptr, num_computed_ptr, match_ptr, columns, padding_slot,
    MOST: tl.constexpr, STRETCH: tl.constexpr,
):  # fmt: skip
    """How many tokens up to each earlier end are the row's last ones, and the best of all ends."""
    row = tl.program_id(0)
    slot, real = _slot_of(slots_ptr, row, padding_slot)
    last = tl.load(num_computed_ptr + slot, mask=real, other=0).to(tl.int32)
    first = tl.program_id(1) * STRETCH
    if real & (first < last):
        said = tokens_ptr + slot * columns
        end = first + tl.arange(0, STRETCH)
        alive = end < last
        matched = tl.zeros((STRETCH,), dtype=tl.int64)
        for back in tl.static_range(MOST):
            wanted = tl.load(said + last - back, mask=last >= back, other=-1)
            alive = alive & (end >= back)
            alive = alive & (tl.load(said + end - back, mask=alive, other=-2) == wanted)
            matched += alive.to(tl.int64)
        tl.atomic_max(match_ptr + row, tl.max((matched << _END_BITS) + end.to(tl.int64), axis=0))


@triton.jit
def _draft_kernel(
    slots_ptr, tokens_ptr, num_computed_ptr, match_ptr, drafts_ptr, counts_ptr, columns,
    padding_slot, fewest, num_drafts, LANES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot, real = _slot_of(slots_ptr, row, padding_slot)
    last = tl.load(num_computed_ptr + slot, mask=real, other=0).to(tl.int64)
    best = tl.load(match_ptr + row)
    found = real & ((best >> _END_BITS) >= fewest)
    end = tl.where(found, best & _END_MASK, 0)
    ahead = tl.arange(0, LANES).to(tl.int64)
    # What is drafted may run on into the drafts themselves: a period goes on.
    at = end + 1 + ahead % tl.where(found, last - end, 1)
    count = tl.where(found, num_drafts, 0)
    token = tl.load(tokens_ptr + slot * columns + at, mask=ahead < count, other=0)
    tl.store(drafts_ptr + row * num_drafts + ahead, token.to(tl.int64), mask=ahead < num_drafts)
    tl.store(counts_ptr + row, count.to(tl.int64))


@triton.jit
def _accept_kernel(
    slots_ptr, drawn_ptr, drafts_ptr, drafted_ptr, tokens_ptr, num_computed_ptr, counts_ptr,
    columns, padding_slot, num_drafts, LANES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot, real = _slot_of(slots_ptr, row, padding_slot)
    place = tl.arange(0, LANES)
    drawn = tl.load(drawn_ptr + row * (num_drafts + 1) + place, mask=place <= num_drafts, other=0)
    drafted = tl.load(drafted_ptr + row)
    draft = tl.load(drafts_ptr + row * num_drafts + place, mask=place < num_drafts, other=-1)
    refused = (place >= drafted) | (place >= num_drafts) | (draft != drawn)
    count = 1 + tl.min(tl.where(refused, place, LANES), axis=0)
    tl.store(counts_ptr + row, count.to(tl.int64))
    position = tl.load(num_computed_ptr + slot, mask=real, other=0).to(tl.int64) + 1 + place
    at = tokens_ptr + slot * columns + position
    tl.store(at, drawn.to(tokens_ptr.dtype.element_ty), mask=place < tl.where(real, count, 0))


def draft_ngrams(slots: torch.Tensor, state: SlotTensors, lookup: Lookup) -> Drafts:
    tokens, rows = _kept(state), slots.shape[0]
    columns = tokens.shape[1]
    best = torch.zeros(rows, dtype=torch.int64, device=slots.device)
    _match_kernel[(rows, triton.cdiv(columns, _STRETCH))](
        slots, tokens, state.num_computed, best, columns, state.padding_slot,
        MOST=lookup.most, STRETCH=_STRETCH, num_warps=4,
    )  # fmt: skip
    drafts = torch.empty((rows, lookup.num_drafts), dtype=torch.int64, device=slots.device)
    counts = torch.empty_like(best)
    _draft_kernel[(rows,)](
        slots, tokens, state.num_computed, best, drafts, counts, columns, state.padding_slot,
        lookup.fewest, lookup.num_drafts, LANES=next_power_of_2(lookup.num_drafts), num_warps=1,
    )  # fmt: skip
    return Drafts(drafts, counts)


def prepare_drafted(
    slots: torch.Tensor,
    offsets: torch.Tensor,
    token_ids: torch.Tensor,
    state: SlotTensors,
    block_size: int,
) -> DecodeInputs:
    return prepare_rows(slots, state, block_size, (offsets, token_ids))


def accept_drafts(
    slots: torch.Tensor, token_ids: torch.Tensor, drafts: Drafts, state: SlotTensors
) -> torch.Tensor:
    tokens, num_drafts = _kept(state), token_ids.shape[1] - 1
    counts = torch.empty(slots.shape[0], dtype=torch.int64, device=slots.device)
    _accept_kernel[(slots.shape[0],)](
        slots, token_ids, drafts.token_ids, drafts.counts, tokens, state.num_computed, counts,
        tokens.shape[1], state.padding_slot, num_drafts, LANES=next_power_of_2(num_drafts + 1),
        num_warps=1,
    )  # fmt: skip
    return counts


def _kept(state: SlotTensors) -> torch.Tensor:
    assert state.tokens is not None, "slots keep their tokens where drafts are looked up"
    return state.tokens
