# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The two ends of a captured decode step: inputs out of the slots, and sampled tokens into them.

A step's rows name their slots; a row without one (negative, or the padding slot) is a graph's
padding: it gets token 0 at position 0, context 0 and no cache slot, and changes no slot.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.interface import DecodeInputs, SlotTensors
from atom.model_ops.backends.triton_ops.launch import next_power_of_2

# Entries of a block table that one program copies.
_TABLE_STRETCH = 1024


@triton.jit(do_not_specialize=["count"])
def _append_kernel(
    appends_ptr, tables_ptr, count, padding_slot, MAX_BLOCKS: tl.constexpr, BLOCK: tl.constexpr
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(appends_ptr + at, mask=at < count, other=-1).to(tl.int64)
    real = (slot >= 0) & (slot != padding_slot)
    index = tl.load(appends_ptr + count + at, mask=real, other=0)
    block = tl.load(appends_ptr + 2 * count + at, mask=real, other=0)
    tl.store(tables_ptr + slot * MAX_BLOCKS + index, block.to(tl.int32), mask=real)


@triton.jit
def _prepare_kernel(
    slots_ptr, last_token_ptr, num_computed_ptr, tables_ptr, temperature_ptr, seed_ptr,
    ids_ptr, positions_ptr, slot_mapping_ptr, contexts_ptr, row_tables_ptr,
    row_temperature_ptr, row_seed_ptr, sample_positions_ptr, padding_slot,
    MAX_BLOCKS: tl.constexpr, BLOCK_SIZE: tl.constexpr, STRETCH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    real = (slot >= 0) & (slot != padding_slot)
    position = tl.load(num_computed_ptr + slot, mask=real, other=0).to(tl.int64)
    table = tables_ptr + slot * MAX_BLOCKS
    context = tl.where(real, position + 1, 0)
    # Only what the context uses of the table is copied; the rest is never read.
    blocks = tl.cdiv(context, BLOCK_SIZE)
    entry = tl.program_id(1) * STRETCH + tl.arange(0, STRETCH)
    entries = tl.load(table + entry, mask=entry < blocks, other=0)
    tl.store(row_tables_ptr + row.to(tl.int64) * MAX_BLOCKS + entry, entries, mask=entry < blocks)
    if tl.program_id(1) == 0:
        block = tl.load(table + position // BLOCK_SIZE, mask=real, other=0).to(tl.int64)
        cache_slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        tl.store(slot_mapping_ptr + row, tl.where(real, cache_slot, -1))
        tl.store(ids_ptr + row, tl.load(last_token_ptr + slot, mask=real, other=0))
        tl.store(positions_ptr + row, position)
        tl.store(contexts_ptr + row, context.to(tl.int32))
        tl.store(row_temperature_ptr + row, tl.load(temperature_ptr + slot, mask=real, other=0.0))
        tl.store(row_seed_ptr + row, tl.load(seed_ptr + slot, mask=real, other=0))
        tl.store(sample_positions_ptr + row, position + 1)


@triton.jit(do_not_specialize=["rows"])
def _commit_kernel(
    slots_ptr, token_ids_ptr, last_token_ptr, num_computed_ptr, padding_slot, rows,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots_ptr + row, mask=row < rows, other=-1).to(tl.int64)
    real = (slot >= 0) & (slot != padding_slot)
    token = tl.load(token_ids_ptr + row, mask=real, other=0)
    tl.store(last_token_ptr + slot, token.to(last_token_ptr.dtype.element_ty), mask=real)
    computed = tl.load(num_computed_ptr + slot, mask=real, other=0)
    tl.store(num_computed_ptr + slot, computed + 1, mask=real)


def prepare_decode(
    slots: torch.Tensor, appends: torch.Tensor, state: SlotTensors, block_size: int
) -> DecodeInputs:
    if appends.shape[1]:
        _append_blocks(appends, state)
    inputs = _empty_inputs(slots.shape[0], state.block_tables.shape[1], slots.device)
    _gather_inputs(slots, state, block_size, inputs)
    return inputs


def _append_blocks(appends: torch.Tensor, state: SlotTensors) -> None:
    """appends is contiguous [3, A]; one slot's table has no entry twice in it."""
    count = appends.shape[1]
    block = min(256, next_power_of_2(count))
    _append_kernel[(triton.cdiv(count, block),)](
        appends, state.block_tables, count, state.padding_slot,
        MAX_BLOCKS=state.block_tables.shape[1], BLOCK=block, num_warps=4,
    )  # fmt: skip


def _empty_inputs(rows: int, max_blocks: int, device: torch.device) -> DecodeInputs:

    def column(dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(rows, dtype=dtype, device=device)

    return DecodeInputs(
        input_ids=column(torch.int64),
        positions=column(torch.int64),
        slot_mapping=column(torch.int64),
        context_lens=column(torch.int32),
        block_tables=torch.empty((rows, max_blocks), dtype=torch.int32, device=device),
        temperature=column(torch.float32),
        seed=column(torch.int64),
        sample_positions=column(torch.int64),
    )


def _gather_inputs(
    slots: torch.Tensor, state: SlotTensors, block_size: int, inputs: DecodeInputs
) -> None:
    rows, max_blocks = slots.shape[0], state.block_tables.shape[1]
    stretch = min(_TABLE_STRETCH, next_power_of_2(max_blocks))
    _prepare_kernel[(rows, triton.cdiv(max_blocks, stretch))](
        slots, state.last_token, state.num_computed, state.block_tables, state.temperature,
        state.seed, inputs.input_ids, inputs.positions, inputs.slot_mapping, inputs.context_lens,
        inputs.block_tables, inputs.temperature, inputs.seed, inputs.sample_positions,
        state.padding_slot, MAX_BLOCKS=max_blocks, BLOCK_SIZE=block_size, STRETCH=stretch,
        num_warps=4,
    )  # fmt: skip


def commit_tokens(slots: torch.Tensor, token_ids: torch.Tensor, state: SlotTensors) -> None:
    rows = slots.shape[0]
    block = min(256, next_power_of_2(rows))
    _commit_kernel[(triton.cdiv(rows, block),)](
        slots, token_ids, state.last_token, state.num_computed, state.padding_slot, rows,
        BLOCK=block, num_warps=1 if block <= 32 else 4,
    )  # fmt: skip
