"""The ends of a captured decode step equal their plain twins, padding rows included."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from atom.model_ops.backends.interface import Backend, SlotTensors
from tests.engine.ops.inputs import slot_tensors

SLOTS, MAX_BLOCKS = 11, 24


def copy_of(state: SlotTensors) -> SlotTensors:
    return SlotTensors(**{f.name: getattr(state, f.name).clone() for f in fields(state)})


@pytest.mark.parametrize("block_size", [16, 32])
def test_a_step_of_slots(
    backend: Backend, reference: Backend, device: torch.device, block_size: int
) -> None:
    state = slot_tensors(SLOTS, MAX_BLOCKS, device)
    twin = copy_of(state)
    slots = torch.tensor([4, 0, SLOTS, 9, -1, SLOTS, 10], device=device)
    appends = torch.tensor(
        [[9, SLOTS, 0, -1, 0], [3, 0, 1, 0, 23], [777, 1, 888, 2, 999]], device=device
    )
    expected = reference.operations["prepare_decode"](slots, appends, twin, block_size)
    inputs = backend.operations["prepare_decode"](slots, appends, state, block_size)
    for field in fields(inputs):
        if field.name != "block_tables":
            got, want = getattr(inputs, field.name), getattr(expected, field.name)
            assert got.dtype == want.dtype
            assert torch.equal(got, want), field.name
    for row, context in enumerate(inputs.context_lens.tolist()):
        used = -(-context // block_size)
        assert torch.equal(inputs.block_tables[row, :used], expected.block_tables[row, :used])
    assert inputs.context_lens.tolist()[2] == 0
    assert inputs.slot_mapping.tolist()[4] == -1

    token_ids = torch.arange(100, 100 + len(slots), device=device)
    reference.operations["commit_tokens"](slots, token_ids, twin)
    backend.operations["commit_tokens"](slots, token_ids, state)
    for field in fields(state):
        got, want = getattr(state, field.name), getattr(twin, field.name)
        # Nothing says what the padding slot holds.
        assert torch.equal(got[:SLOTS], want[:SLOTS]), field.name
    assert state.last_token[[4, 10]].tolist() == [100, 106]


@pytest.mark.gpu
def test_hundreds_of_rows(backend: Backend, reference: Backend, device: torch.device) -> None:
    state = slot_tensors(600, 2560, device)
    slots = torch.randperm(601, device=device)[:512]
    none = torch.empty((3, 0), dtype=torch.int64, device=device)
    expected = reference.operations["prepare_decode"](slots, none, state, 16)
    inputs = backend.operations["prepare_decode"](slots, none, state, 16)
    assert torch.equal(inputs.slot_mapping, expected.slot_mapping)
    before = state.num_computed.clone()
    backend.operations["commit_tokens"](slots, slots + 1, state)
    real = slots[slots != 600]
    assert torch.equal(state.num_computed[real], before[real] + 1)
    assert torch.equal(state.last_token[real], real + 1)
