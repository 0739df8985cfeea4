"""The ends of a captured decode step equal their plain split_hi_lo, padding rows included."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.pinned_ring import RING_ENTRIES, empty_ring
from atom.model_ops.slots import SlotSampling, SlotTensors
from tests.engine.ops.inputs import slot_tensors

SLOTS, MAX_BLOCKS = 11, 24


def copy_of(state: SlotTensors) -> SlotTensors:
    columns = {name: value.clone() for name, value in tensors(state).items()}
    sampling = SlotSampling(**{n: value.clone() for n, value in tensors(state.sampling).items()})
    return SlotTensors(**columns, sampling=sampling, num_groups=state.num_groups)


def tensors(state: SlotTensors | SlotSampling) -> dict[str, torch.Tensor]:
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("block_size", [16, 48])
@pytest.mark.parametrize("groups", [1, 3])
def test_a_step_of_slots(
    backend: Backend, reference: Backend, device: torch.device, groups: int, block_size: int
) -> None:
    state = slot_tensors(SLOTS, MAX_BLOCKS, device, groups)
    twin = copy_of(state)
    slots = torch.tensor([4, 0, SLOTS, 9, -1, SLOTS, 10], device=device)
    expected = reference.operations["prepare_decode"](slots, twin, block_size)
    inputs = backend.operations["prepare_decode"](slots, state, block_size)
    for field in fields(inputs):
        if field.name != "block_tables":
            got, want = getattr(inputs, field.name), getattr(expected, field.name)
            assert got.dtype == want.dtype
            assert torch.equal(got, want), field.name
    for row, context in enumerate(inputs.context_lens.tolist()):
        used = -(-context // block_size)
        got, want = inputs.block_tables[:, row, :used], expected.block_tables[:, row, :used]
        assert torch.equal(got, want)
    assert inputs.context_lens.tolist()[2] == 0
    assert inputs.slot_mapping[:, 4].tolist() == [-1] * groups

    token_ids = torch.arange(100, 100 + len(slots), device=device)
    reference.operations["commit_tokens"](slots, token_ids, twin)
    backend.operations["commit_tokens"](slots, token_ids, state)
    for name, got in tensors(state).items():
        # Nothing says what the padding slot holds.
        assert torch.equal(got[:SLOTS], getattr(twin, name)[:SLOTS]), name
    assert state.last_token[[4, 10]].tolist() == [100, 106]


def entry(slots: list[int], appends: list[list[int]], groups: int) -> torch.Tensor:
    """A entry of SLOTS entries a group; appends: slots, columns, block ids."""
    filled = torch.full((4, SLOTS * groups), SLOTS, dtype=torch.int32)
    filled[0, : len(slots)] = torch.tensor(slots)
    filled[1:, : len(appends[0])] = torch.tensor(appends)
    return filled


@pytest.mark.parametrize("groups", [1, 2])
def test_every_step_receives_the_letter_after_the_last_ones_and_answers_it(
    backend: Backend, reference: Backend, device: torch.device, groups: int
) -> None:
    state = slot_tensors(SLOTS, MAX_BLOCKS, device, groups)
    ring = empty_ring(state)
    twin = copy_of(state)
    slots = torch.zeros(SLOTS, dtype=torch.int64, device=device)
    for step in range(RING_ENTRIES + 2):
        said = entry(
            [step, SLOTS, 10], [[9, SLOTS, -1, 0], [3, 0, 1, step], [77, 1, 2, 500 + step]], groups
        )
        ring.said[step % RING_ENTRIES] = said
        backend.operations["receive_step"](ring, slots, state)
        assert slots.tolist() == said[0, :SLOTS].tolist()
        twin.block_tables[9, 3], twin.block_tables[0, step] = 77, 500 + step
        assert torch.equal(state.block_tables[:SLOTS], twin.block_tables[:SLOTS])

        token_ids = torch.arange(3, device=device) + 1000 * step
        backend.operations["commit_tokens"](slots[:3], token_ids, state, ring)
        reference.operations["commit_tokens"](slots[:3], token_ids, twin)
        assert torch.equal(state.last_token[:SLOTS], twin.last_token[:SLOTS])
        assert ring.answers[step % RING_ENTRIES, 0, :3].tolist() == token_ids.tolist()
    assert ring.turn.tolist() == [RING_ENTRIES + 2, (RING_ENTRIES + 1) % RING_ENTRIES]


def test_a_letter_says_how_many_drafts_each_row_carries(
    backend: Backend, device: torch.device
) -> None:
    state = slot_tensors(SLOTS, MAX_BLOCKS, device, 2)
    ring = empty_ring(state, several_tokens=40)
    slots, wanted = torch.zeros((2, SLOTS), dtype=torch.int64, device=device)
    for step in range(RING_ENTRIES + 1):
        said = torch.zeros((5, 2 * SLOTS), dtype=torch.int32)
        said[:4], said[4, :3] = entry([4, 0, 9], [[9], [30], [77 + step]], 2), step
        ring.said[step % RING_ENTRIES] = said
        backend.operations["receive_step"](ring, slots, state, wanted)
        assert slots.tolist() == [4, 0, 9] + [SLOTS] * (SLOTS - 3)
        assert wanted.tolist() == [step] * 3 + [0] * (SLOTS - 3)
        assert state.block_tables[9, 30] == 77 + step


def test_a_letter_of_thousands_of_slots(backend: Backend, device: torch.device) -> None:
    count = 1100
    state = slot_tensors(count, 2, device)
    ring = empty_ring(state)
    expected = torch.randperm(count)
    ring.said[0, 0] = expected
    ring.said[0, 1] = expected
    ring.said[0, 2] = 1
    ring.said[0, 3] = expected + 7
    slots = torch.zeros(count, dtype=torch.int64, device=device)
    backend.operations["receive_step"](ring, slots, state)
    assert torch.equal(slots.cpu(), expected)
    assert torch.equal(state.block_tables[:count, 1].cpu(), torch.arange(count).int() + 7)


@pytest.mark.gpu
def test_hundreds_of_rows(backend: Backend, reference: Backend, device: torch.device) -> None:
    state = slot_tensors(600, 2560, device)
    slots = torch.randperm(601, device=device)[:512]
    expected = reference.operations["prepare_decode"](slots, state, 16)
    inputs = backend.operations["prepare_decode"](slots, state, 16)
    assert torch.equal(inputs.slot_mapping, expected.slot_mapping)
    before = state.num_computed.clone()
    backend.operations["commit_tokens"](slots, slots + 1, state)
    real = slots[slots != 600]
    assert torch.equal(state.num_computed[real], before[real] + 1)
    assert torch.equal(state.last_token[real], real + 1)
