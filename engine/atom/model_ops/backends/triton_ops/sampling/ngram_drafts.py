# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Drafts from rows' own tokens, and their acceptance, without the host.

One program searches a row's text, from its newest chunk to its oldest, until a match has the
greatest length, which no older one can exceed. All data of a chunk are read at once: a search costs
one memory latency for each chunk, and rows are searched concurrently.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.pinned_ring import PinnedRing
from atom.model_ops.backends.triton_ops.launch import next_power_of_2
from atom.model_ops.backends.triton_ops.sampling.decode_state import prepare_rows
from atom.model_ops.drafts import DraftLayout, Drafts, DrawnRuns, Lookup
from atom.model_ops.slots import DecodeInputs, SlotTensors

_CHUNK = 2048
_LAYOUT_CHUNK = 1024
# A match is its length above and its end below these bits.
_END_BITS = tl.constexpr(32)
_END_MASK = tl.constexpr(2**32 - 1)


@triton.jit
def _slot_of(slots_ptr, row, padding_slot):
    """A row's slot, and whether the row is more than padding."""
    slot = tl.load(slots_ptr + row).to(tl.int64)
    return slot, (slot >= 0) & (slot != padding_slot)


@triton.jit
def _look_up_kernel(
    slots_ptr, wanted_ptr, tokens_ptr, num_computed_ptr, drafts_ptr, counts_ptr, columns,
    padding_slot, fewest, num_drafts,
    MOST: tl.constexpr, CHUNK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """The best earlier end is the one up to which most tokens are the row's last ones, and of these
    the newest."""
    row = tl.program_id(0)
    slot, real = _slot_of(slots_ptr, row, padding_slot)
    wanted = tl.load(wanted_ptr + row)
    last = tl.load(num_computed_ptr + slot, mask=real, other=0).to(tl.int32)
    said = tokens_ptr + slot * columns
    best = last.to(tl.int64) * 0
    behind = tl.where(wanted > 0, last, 0)  # the search ends before this
    while behind > 0:
        end = behind - CHUNK + tl.arange(0, CHUNK)
        alive = end >= 0
        matched = tl.zeros((CHUNK,), dtype=tl.int64)
        # All ends at once: lanes are ends, and a lane drops out at its first token that differs.
        for back in tl.static_range(MOST):
            newest = tl.load(said + last - back, mask=last >= back, other=-1)
            token = tl.load(said + end - back, mask=end >= back, other=-2)
            alive = alive & (token == newest)
            matched += alive.to(tl.int64)
        # Length above end in one number: one maximum finds the longest, and of these the newest.
        found = tl.max((matched << _END_BITS) + tl.maximum(end, 0).to(tl.int64), axis=0)
        longer = (found >> _END_BITS) > (best >> _END_BITS)
        best = tl.where(longer, found, best)
        behind = tl.where((best >> _END_BITS) == MOST, 0, behind - CHUNK)
    found = real & (wanted > 0) & ((best >> _END_BITS) >= fewest)
    end = tl.where(found, best & _END_MASK, 0)
    ahead = tl.arange(0, LANES).to(tl.int64)
    # The continuation may run into the drafts themselves: a period continues.
    at = end + 1 + ahead % tl.where(found, last - end, 1)
    token = tl.load(said + at, mask=ahead < tl.where(found, num_drafts, 0), other=0)
    tl.store(drafts_ptr + row * num_drafts + ahead, token.to(tl.int64), mask=ahead < num_drafts)
    tl.store(counts_ptr + row, tl.where(found, wanted, 0))


@triton.jit
def _layout_kernel(
    slots_ptr, wanted_ptr, first_ptr, token_slots_ptr, row_ptr, offset_ptr, run_starts_ptr, rows,
    tokens, padding_slot, LANES: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One program, a lane for each row."""
    lane = tl.arange(0, LANES)
    slot = tl.load(slots_ptr + lane, mask=lane < rows, other=-1)
    wanted = tl.load(wanted_ptr + lane, mask=lane < rows, other=0)
    real = (slot >= 0) & (slot != padding_slot)
    count = tl.where(real, 1 + wanted, 0)
    # One program for all rows: a scan over rows in registers instead of a launch that sums.
    first = tl.cumsum(count, axis=0) - count
    tl.store(first_ptr + lane, tl.minimum(first, tokens - 1), mask=lane < rows)
    tl.store(run_starts_ptr + lane, first.to(tl.int32), mask=lane < rows)
    for offset in range(tl.max(count, axis=0)):
        at = first + offset
        inside = (offset < count) & (at < tokens)
        tl.store(token_slots_ptr + at, slot, mask=inside)
        tl.store(row_ptr + at, lane.to(tl.int64), mask=inside)
        tl.store(offset_ptr + at, at - first, mask=inside)
    used = tl.sum(count, axis=0)
    tl.store(run_starts_ptr + rows, used.to(tl.int32))
    for start in range(0, tokens, CHUNK):
        at = start + tl.arange(0, CHUNK)
        unused = (at >= used) & (at < tokens)
        zero = tl.zeros((CHUNK,), dtype=tl.int64)
        tl.store(token_slots_ptr + at, zero + padding_slot, mask=unused)
        tl.store(row_ptr + at, zero, mask=unused)
        tl.store(offset_ptr + at, zero, mask=unused)


@triton.jit
def _accept_kernel(
    slots_ptr, first_ptr, drawn_ptr, drafts_ptr, drafted_ptr, tokens_ptr, last_token_ptr,
    num_computed_ptr, counts_ptr, turn_ptr, answers_ptr, columns, padding_slot, num_drafts,
    num_answers, LANES: tl.constexpr, ANSWERS: tl.constexpr,
):  # fmt: skip
    """num_answers: of a line, of which an entry has three."""
    row = tl.program_id(0)
    slot, real = _slot_of(slots_ptr, row, padding_slot)
    place = tl.arange(0, LANES)
    drafted = tl.where(real, tl.load(drafted_ptr + row), 0)
    at = tl.load(first_ptr + row) + place
    drawn = tl.load(drawn_ptr + at, mask=place <= drafted, other=0)
    draft = tl.load(drafts_ptr + row * num_drafts + place, mask=place < drafted, other=-1)
    refused = (place >= drafted) | (draft != drawn)
    # Up to the first draft that is not the token drawn in its place; that draw is kept, so one
    # token is always got.
    count = 1 + tl.min(tl.where(refused, place, LANES), axis=0)
    tl.store(counts_ptr + row, count.to(tl.int64))
    if ANSWERS:
        entry = answers_ptr + tl.load(turn_ptr + 1) * num_answers * 3
        tl.store(entry + at, drawn.to(tl.int32), mask=place < tl.where(real, 1 + drafted, 0))
        tl.store(entry + num_answers + row, count.to(tl.int32))
        tl.store(entry + 2 * num_answers + row, drafted.to(tl.int32))
    computed = tl.load(num_computed_ptr + slot, mask=real, other=0).to(tl.int64)
    got = place < tl.where(real, count, 0)
    kept = tokens_ptr + slot * columns + computed + 1 + place
    tl.store(kept, drawn.to(tokens_ptr.dtype.element_ty), mask=got)
    # One lane stores: the one of the last token that holds.
    tl.store(last_token_ptr + slot + 0 * place, drawn, mask=got & (place == count - 1))
    tl.store(num_computed_ptr + slot, computed + count, mask=real)


def draft_ngrams(
    slots: torch.Tensor, wanted: torch.Tensor, state: SlotTensors, lookup: Lookup, drafts: Drafts
) -> None:
    tokens, num_drafts = _kept(state), drafts.token_ids.shape[1]
    _look_up_kernel[(slots.shape[0],)](
        slots, wanted, tokens, state.num_computed, drafts.token_ids, drafts.counts,
        tokens.shape[1], state.padding_slot, lookup.fewest, num_drafts, MOST=lookup.most,
        CHUNK=_CHUNK, LANES=next_power_of_2(num_drafts), num_warps=8,
    )  # fmt: skip


def lay_out_drafts(layout: DraftLayout, state: SlotTensors) -> None:
    rows, tokens = layout.slots.shape[0], layout.row.shape[0]
    _layout_kernel[(1,)](
        layout.slots, layout.wanted, layout.first, layout.token_slots, layout.row, layout.offset,
        layout.runs.starts, rows, tokens, state.padding_slot, LANES=next_power_of_2(rows),
        CHUNK=_LAYOUT_CHUNK, num_warps=4,
    )  # fmt: skip


def prepare_drafted(
    slots: torch.Tensor,
    offsets: torch.Tensor,
    token_ids: torch.Tensor,
    state: SlotTensors,
    block_size: int,
) -> DecodeInputs:
    return prepare_rows(slots, state, block_size, (offsets, token_ids))


def accept_drafts(
    drawn: DrawnRuns, drafts: Drafts, state: SlotTensors, ring: PinnedRing | None = None
) -> torch.Tensor:
    tokens, rows, num_drafts = _kept(state), drawn.slots.shape[0], drafts.token_ids.shape[1]
    counts = torch.empty(rows, dtype=torch.int64, device=drawn.slots.device)
    _accept_kernel[(rows,)](
        drawn.slots, drawn.first, drawn.token_ids, drafts.token_ids, drafts.counts, tokens,
        state.last_token, state.num_computed, counts, ring and ring.turn, ring and ring.answers,
        tokens.shape[1], state.padding_slot, num_drafts, ring.answers.shape[2] if ring else 0,
        LANES=next_power_of_2(num_drafts + 1), ANSWERS=ring is not None, num_warps=1,
    )  # fmt: skip
    return counts


def _kept(state: SlotTensors) -> torch.Tensor:
    assert state.tokens is not None, "slots keep their tokens where drafts are looked up"
    return state.tokens
