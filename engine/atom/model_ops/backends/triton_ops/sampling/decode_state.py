# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The two ends of a captured decode step: inputs out of the slots, and sampled tokens into them.

The host's entry is read, and answered, in host memory: no copy waits between two steps. A step's
rows name their slots; a row without one (negative, or the padding slot) is a graph's padding: it
gets token 0 at position 0, context 0 and no cache slot, and changes no slot.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.pinned_ring import RING_ENTRIES, PinnedRing
from atom.model_ops.backends.triton_ops.launch import next_power_of_2
from atom.model_ops.slots import DecodeInputs, SlotTensors

# Entries of a block table that one program copies, and of a entry that are read at once.
_TABLE_CHUNK = 1024
_ENTRY_CHUNK = 512
# Rows whose tokens one program commits.
_FEW_ROWS, _MANY_ROWS = 32, 256


@triton.jit
def _receive_kernel(
    said_ptr, turn_ptr, slots_ptr, tables_ptr, wanted_ptr, count, num_slots, padding_slot,
    RING_ENTRIES: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """Run as one program of one warp: no part of it may read the turn after another part has
    advanced it."""
    turn = tl.load(turn_ptr)
    place = turn % RING_ENTRIES
    entry_ptr = said_ptr + place * LINES * count
    for first in range(0, count, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < count
        # All at once: the cost of the host's memory is its latency.
        row_slot = tl.load(entry_ptr + at, mask=inside, other=-1)
        slot = tl.load(entry_ptr + count + at, mask=inside, other=-1).to(tl.int64)
        column = tl.load(entry_ptr + 2 * count + at, mask=inside, other=0)
        block = tl.load(entry_ptr + 3 * count + at, mask=inside, other=0)
        if AHEAD:
            wanted = tl.load(entry_ptr + 4 * count + at, mask=inside, other=0)
            tl.store(wanted_ptr + at, wanted.to(tl.int64), mask=at < num_slots)
        tl.store(slots_ptr + at, row_slot.to(tl.int64), mask=at < num_slots)
        real = (slot >= 0) & (slot != padding_slot)
        tl.store(tables_ptr + slot * COLUMNS + column, block, mask=real)
    tl.store(turn_ptr, turn + 1)
    tl.store(turn_ptr + 1, place)


@triton.jit
def _prepare_kernel(
    slots_ptr, last_token_ptr, num_computed_ptr, tables_ptr, temperature_ptr, seed_ptr,
    ids_ptr, positions_ptr, slot_mapping_ptr, contexts_ptr, row_tables_ptr,
    row_temperature_ptr, row_seed_ptr, sample_positions_ptr, offsets_ptr, ahead_ptr, padding_slot,
    MAX_BLOCKS: tl.constexpr, GROUPS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    CHUNK: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """MAX_BLOCKS: of one group. AHEAD: rows stand `offsets` tokens further."""
    # Axis 1: parts of a row's table, so that a long one is copied by several programs side by side.
    row, group = tl.program_id(0), tl.program_id(2)
    at = group.to(tl.int64) * tl.num_programs(0) + row  # of the row in this group's outputs
    slot = tl.load(slots_ptr + row).to(tl.int64)
    real = (slot >= 0) & (slot != padding_slot)
    position = tl.load(num_computed_ptr + slot, mask=real, other=0).to(tl.int64)
    if AHEAD:
        offset = tl.load(offsets_ptr + row, mask=real, other=0)
        position += offset
    table = tables_ptr + (slot * GROUPS + group) * MAX_BLOCKS
    context = tl.where(real, position + 1, 0)
    # Only the part of the table that the context uses is copied; the rest is never read.
    blocks = tl.cdiv(context, BLOCK_SIZE)
    entry = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    entries = tl.load(table + entry, mask=entry < blocks, other=0)
    tl.store(row_tables_ptr + at * MAX_BLOCKS + entry, entries, mask=entry < blocks)
    if tl.program_id(1) == 0:
        block = tl.load(table + position // BLOCK_SIZE, mask=real, other=0).to(tl.int64)
        cache_slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        # -1 of padding: the cache write takes it as no slot.
        tl.store(slot_mapping_ptr + at, tl.where(real, cache_slot, -1))
    if (tl.program_id(1) == 0) & (group == 0):
        token = tl.load(last_token_ptr + slot, mask=real, other=0)
        if AHEAD:
            token = tl.where(offset > 0, tl.load(ahead_ptr + row, mask=real, other=0), token)
        tl.store(ids_ptr + row, token)
        tl.store(positions_ptr + row, position)
        tl.store(contexts_ptr + row, context.to(tl.int32))
        tl.store(row_temperature_ptr + row, tl.load(temperature_ptr + slot, mask=real, other=0.0))
        tl.store(row_seed_ptr + row, tl.load(seed_ptr + slot, mask=real, other=0))
        tl.store(sample_positions_ptr + row, position + 1)


@triton.jit(do_not_specialize=["rows"])
def _commit_kernel(
    slots_ptr, token_ids_ptr, last_token_ptr, num_computed_ptr, turn_ptr, answers_ptr,
    tokens_ptr, padding_slot, rows, num_answers, columns,
    BLOCK: tl.constexpr, ANSWERS: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """num_answers: of a entry. KEPT: slots keep their tokens, in lines of `columns`."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots_ptr + row, mask=row < rows, other=-1).to(tl.int64)
    # Padding rows may share a slot; no value is written for them, so there is no race.
    real = (slot >= 0) & (slot != padding_slot)
    token = tl.load(token_ids_ptr + row, mask=row < rows, other=0)
    if ANSWERS:
        answer_at = answers_ptr + tl.load(turn_ptr + 1) * num_answers + row
        tl.store(answer_at, token.to(tl.int32), mask=row < rows)
    tl.store(last_token_ptr + slot, token.to(last_token_ptr.dtype.element_ty), mask=real)
    computed = tl.load(num_computed_ptr + slot, mask=real, other=0)
    tl.store(num_computed_ptr + slot, computed + 1, mask=real)
    if KEPT:
        at = tokens_ptr + slot * columns + computed + 1
        tl.store(at, token.to(tokens_ptr.dtype.element_ty), mask=real)


def receive_step(
    ring: PinnedRing,
    slots: torch.Tensor,
    state: SlotTensors,
    wanted: torch.Tensor | None = None,
) -> None:
    lines, count = ring.said.shape[1:]
    _receive_kernel[(1,)](
        ring.said, ring.turn, slots, state.block_tables, wanted, count, slots.shape[0],
        state.padding_slot, RING_ENTRIES=RING_ENTRIES, LINES=lines,
        COLUMNS=state.block_tables.shape[1], BLOCK=min(_ENTRY_CHUNK, next_power_of_2(count)),
        AHEAD=wanted is not None, num_warps=1,
    )  # fmt: skip


def prepare_decode(slots: torch.Tensor, state: SlotTensors, block_size: int) -> DecodeInputs:
    return prepare_rows(slots, state, block_size, None)


def prepare_rows(
    slots: torch.Tensor,
    state: SlotTensors,
    block_size: int,
    ahead: tuple[torch.Tensor, torch.Tensor] | None,
) -> DecodeInputs:
    """Compute `prepare_decode`, or with offsets and tokens [R] int64 `prepare_drafted`."""
    inputs = _empty_inputs(slots.shape[0], state)
    _gather_inputs(slots, state, block_size, inputs, ahead)
    return inputs


def _empty_inputs(rows: int, state: SlotTensors) -> DecodeInputs:
    device, groups = state.block_tables.device, state.num_groups

    def column(dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(rows, dtype=dtype, device=device)

    return DecodeInputs(
        input_ids=column(torch.int64),
        positions=column(torch.int64),
        slot_mapping=torch.empty((groups, rows), dtype=torch.int64, device=device),
        context_lens=column(torch.int32),
        block_tables=torch.empty(
            (groups, rows, state.max_blocks), dtype=torch.int32, device=device
        ),
        temperature=column(torch.float32),
        seed=column(torch.int64),
        sample_positions=column(torch.int64),
    )


def _gather_inputs(
    slots: torch.Tensor,
    state: SlotTensors,
    block_size: int,
    inputs: DecodeInputs,
    ahead: tuple[torch.Tensor, torch.Tensor] | None,
) -> None:
    offsets, token_ids = ahead or (None, None)
    rows, max_blocks = slots.shape[0], state.max_blocks
    chunk = min(_TABLE_CHUNK, next_power_of_2(max_blocks))
    _prepare_kernel[(rows, triton.cdiv(max_blocks, chunk), state.num_groups)](
        slots, state.last_token, state.num_computed, state.block_tables, state.sampling.temperature,
        state.sampling.seed, inputs.input_ids, inputs.positions, inputs.slot_mapping,
        inputs.context_lens, inputs.block_tables, inputs.temperature, inputs.seed,
        inputs.sample_positions, offsets, token_ids, state.padding_slot, MAX_BLOCKS=max_blocks,
        GROUPS=state.num_groups, BLOCK_SIZE=block_size, CHUNK=chunk, AHEAD=ahead is not None,
        num_warps=4,
    )  # fmt: skip


def commit_tokens(
    slots: torch.Tensor,
    token_ids: torch.Tensor,
    state: SlotTensors,
    ring: PinnedRing | None = None,
) -> None:
    rows, kept = slots.shape[0], state.tokens
    # Two sizes of program, so that two kernels serve any number of rows.
    block = _FEW_ROWS if rows <= _FEW_ROWS else _MANY_ROWS
    _commit_kernel[(triton.cdiv(rows, block),)](
        slots, token_ids, state.last_token, state.num_computed, ring and ring.turn,
        ring and ring.answers, kept, state.padding_slot, rows,
        ring.answers.shape[1] * ring.answers.shape[2] if ring else 0,
        0 if kept is None else kept.shape[1],
        BLOCK=block, ANSWERS=ring is not None, KEPT=kept is not None,
        num_warps=1 if block == _FEW_ROWS else 4,
    )  # fmt: skip
