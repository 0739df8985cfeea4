"""What the host posts is what a step receives, in order, and its answer is the one that is read."""

from __future__ import annotations

import numpy as np
import torch

from atom.model_engine.runner.step_mailbox import StepMailbox
from atom.model_ops.backends.torch_ref.decode_state import commit_tokens, receive_step
from tests.engine.ops.inputs import slot_tensors

SLOTS = 6
CPU = torch.device("cpu")


def test_letters_are_received_and_answered_in_turn() -> None:
    state = slot_tensors(SLOTS, 8, CPU)
    mailbox = StepMailbox(state)
    slots = torch.zeros(SLOTS, dtype=torch.int64)
    expected = state.block_tables.clone()
    none = np.zeros((0, 3), dtype=np.int32)
    for step in range(8):
        appends = np.array([[step % SLOTS, step, 100 + step]], dtype=np.int32) if step % 2 else none
        rows = np.arange(step % 4 + 1)[::-1]
        mailbox.post(rows, appends)
        receive_step(mailbox.mail, slots, state)
        assert slots.tolist() == [*rows.tolist(), *[SLOTS] * (SLOTS - len(rows))]
        for slot, index, block in appends.tolist():
            expected[slot, index] = block
        assert torch.equal(state.block_tables, expected)

        tokens = torch.arange(len(rows)) + 10 * step
        commit_tokens(slots[: len(rows)], tokens, state, mailbox.mail)
        assert mailbox.answer(len(rows)).token_ids.tolist() == tokens.tolist()


def test_rows_that_got_several_tokens_are_read_row_after_row() -> None:
    state = slot_tensors(SLOTS, 8, CPU)
    mailbox = StepMailbox(state, tokens_per_row=3)
    slots = torch.zeros(SLOTS, dtype=torch.int64)
    before = state.num_computed.clone()
    mailbox.post(np.array([3, 1]), np.zeros((0, 3), dtype=np.int32))
    receive_step(mailbox.mail, slots, state)
    tokens = torch.tensor([[10, 11, 12], [20, 21, 22]])
    commit_tokens(slots[:2], tokens, state, mailbox.mail, torch.tensor([2, 3]))
    token_ids, counts = mailbox.answer(2).wait()
    assert token_ids.tolist() == [10, 11, 20, 21, 22]
    assert counts is not None
    assert counts.tolist() == [2, 3]
    assert state.last_token[[3, 1]].tolist() == [11, 22]
    assert (state.num_computed - before)[[3, 1]].tolist() == [2, 3]


def test_a_restart_counts_from_the_first_letter() -> None:
    state = slot_tensors(SLOTS, 8, CPU)
    mailbox = StepMailbox(state)
    slots = torch.zeros(SLOTS, dtype=torch.int64)
    none = np.zeros((0, 3), dtype=np.int32)
    for _ in range(2):
        receive_step(mailbox.mail, slots, state)  # as steps do that run for their capture
    mailbox.restart()
    mailbox.post(np.array([3, 1]), none)
    receive_step(mailbox.mail, slots, state)
    assert slots.tolist()[:2] == [3, 1]
