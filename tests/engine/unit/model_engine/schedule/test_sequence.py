"""A sequence's states change only as the one table says, and what it is asked is derived."""

from __future__ import annotations

import itertools

import pytest

from atom.model_engine.sequence import (
    LEGAL_TRANSITIONS,
    Sequence,
    SequenceStatus,
)
from tests.support.engine_core.builders_engine import FakeModel, make_request, make_scheduler

WAITING, RUNNING = SequenceStatus.WAITING, SequenceStatus.RUNNING
FINISHED = SequenceStatus.FINISHED
LEGAL = {
    (WAITING, RUNNING),  # admitted
    (RUNNING, WAITING),  # preempted
    (WAITING, FINISHED),  # aborted
    (RUNNING, FINISHED),
}


def sequence_in(status: SequenceStatus) -> Sequence:
    sequence = Sequence(make_request())
    if status is not WAITING:
        sequence.status = status
    return sequence


def test_the_table_of_transitions_is_the_life_of_a_request() -> None:
    stated = {(old, new) for old, targets in LEGAL_TRANSITIONS.items() for new in targets}
    assert stated == LEGAL


@pytest.mark.parametrize(
    ("old", "new"),
    [pair for pair in itertools.product(SequenceStatus, repeat=2) if pair not in LEGAL],
    ids=lambda status: status.name,
)
def test_any_other_change_raises(old: SequenceStatus, new: SequenceStatus) -> None:
    sequence = sequence_in(old)
    with pytest.raises(RuntimeError, match=f"{old.name} → {new.name}"):
        sequence.status = new
    assert sequence.status is old


def test_a_status_follows_the_request_from_arrival_to_end() -> None:
    model = FakeModel(make_scheduler(max_num_batched_tokens=8))
    model.scheduler.add(make_request(0, 12, max_tokens=3))
    (sequence,) = model.scheduler.waiting
    seen = [sequence.status]
    while model.scheduler.has_work():
        model.step()
        seen.append(sequence.status)
    assert seen == [WAITING, RUNNING, RUNNING, RUNNING, FINISHED]


def test_tokens_of_prompt_and_answer_are_told_apart() -> None:
    model = FakeModel(make_scheduler(), token=7)
    model.scheduler.add(make_request(0, [30, 31, 32], max_tokens=2))
    (sequence,) = model.scheduler.waiting
    model.run()
    assert sequence.prompt_token_ids.tolist() == [30, 31, 32]
    assert sequence.token_ids.tolist() == [30, 31, 32, 7, 7]
    assert sequence.num_tokens == 5
    assert not sequence.block_tables, "given back"
