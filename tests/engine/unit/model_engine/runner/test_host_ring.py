"""What the host posts is what a step receives, in order, and its answer is the one that is read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.runner.cuda_graphs.host_ring import HostRing
from atom.model_engine.runner.verify_rows import verify_rows
from atom.model_ops.backends.torch_ref.decode_state import commit_tokens, receive_step
from atom.model_ops.backends.torch_ref.drafting import accept_drafts
from atom.model_ops.drafts import DrawnRuns, no_drafts
from tests.engine.ops.inputs import slot_tensors

SLOTS = 6
CPU = torch.device("cpu")


def test_letters_are_received_and_answered_in_turn() -> None:
    state = slot_tensors(SLOTS, 8, CPU)
    host_ring = HostRing(state)
    slots = torch.zeros(SLOTS, dtype=torch.int64)
    expected = state.block_tables.clone()
    none = np.zeros((0, 3), dtype=np.int32)
    for step in range(8):
        appends = np.array([[step % SLOTS, step, 100 + step]], dtype=np.int32) if step % 2 else none
        rows = np.arange(step % 4 + 1)[::-1]
        host_ring.post(rows, appends)
        receive_step(host_ring.ring, slots, state)
        assert slots.tolist() == [*rows.tolist(), *[SLOTS] * (SLOTS - len(rows))]
        for slot, index, block in appends.tolist():
            expected[slot, index] = block
        assert torch.equal(state.block_tables, expected)

        tokens = torch.arange(len(rows)) + 10 * step
        commit_tokens(slots[: len(rows)], tokens, state, host_ring.ring)
        assert host_ring.answer(len(rows)).token_ids.tolist() == tokens.tolist()


def test_rows_that_got_several_tokens_are_read_row_after_row() -> None:
    state = slot_tensors(SLOTS, 8, CPU)
    state = replace(state, tokens=torch.zeros((SLOTS + 1, 200), dtype=torch.int32))
    host_ring = HostRing(state, several_tokens=10)
    slots, wanted = torch.zeros((2, SLOTS), dtype=torch.int64)
    before = state.num_computed.clone()
    rows = verify_rows(decode_rows([3, 1, 2]), np.array([1, 3, 0], dtype=np.int32))
    host_ring.post(rows.slots, np.zeros((0, 3), dtype=np.int32), rows.ahead)
    receive_step(host_ring.ring, slots, state, wanted)
    assert wanted.tolist() == [1, 3, 0, 0, 0, 0]
    drawn = DrawnRuns(slots, torch.tensor([0, 2, 6, 0, 0, 0]), torch.arange(10, 17))
    drafts = no_drafts(SLOTS, 3, CPU)
    drafts.token_ids[:2] = torch.tensor([[10, 0, 0], [12, 13, 99]])
    drafts.counts[:2] = torch.tensor([1, 3])
    accept_drafts(drawn, drafts, state, host_ring.ring)
    runs = host_ring.answer_runs(rows)
    token_ids, counts = runs.wait()
    assert token_ids.tolist() == [10, 11, 12, 13, 14, 16]
    assert counts is not None
    assert counts.tolist() == [2, 3, 1]
    assert runs.drafted.tolist() == [1, 3, 0]
    assert state.last_token[[3, 1, 2]].tolist() == [11, 14, 16]
    assert (state.num_computed - before)[[3, 1, 2]].tolist() == [2, 3, 1]


def decode_rows(slots: list[int]) -> ScheduledBatch:
    """A batch of decodes."""
    ones = np.ones(len(slots), dtype=np.int32)
    return ScheduledBatch(
        new_rows=(), block_appends=np.zeros((0, 3), dtype=np.int32), slots=np.array(slots),
        req_ids=np.array(slots), num_computed_tokens=ones, num_scheduled_tokens=ones,
        samples=ones.astype(np.bool_), num_decodes=len(slots),
    )  # fmt: skip


def test_a_restart_counts_from_the_first_letter() -> None:
    state = slot_tensors(SLOTS, 8, CPU)
    host_ring = HostRing(state)
    slots = torch.zeros(SLOTS, dtype=torch.int64)
    none = np.zeros((0, 3), dtype=np.int32)
    for _ in range(2):
        receive_step(host_ring.ring, slots, state)  # as steps do that run for their capture
    host_ring.restart()
    host_ring.post(np.array([3, 1]), none)
    receive_step(host_ring.ring, slots, state)
    assert slots.tolist()[:2] == [3, 1]
