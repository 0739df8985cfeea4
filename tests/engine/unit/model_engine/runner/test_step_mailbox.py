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
