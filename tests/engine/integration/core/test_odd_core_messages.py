"""Requests that no door has checked reach the core's wire: each ends by itself, and no other
request gets another token for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from atom.model_engine.batch import NewRow
from atom.model_engine.request import Request
from atom.model_engine.runner.slots.entering_rows import enter_rows
from atom.model_engine.runner.slots.sampling_state import SamplingState
from atom.model_engine.structured_output.thinking_rows import _Thought
from atom.model_engine.wire.engine_protocol import AddBody, EngineCoreRequestType, encode
from atom.sampling_params import SamplingParams
from atom.structured_outputs.thinking_budget import ThinkingBudget
from tests.support.engine_core.odd_messages import OddMessages
from tests.support.engine_core.reproducible_requests import reproducible_requests
from tests.support.engine_core.wired_core import WiredCore
from tests.support.models.tiny_model import make_tiny_checkpoint

_OPTIONS = {
    "reproducible": True, "num_kv_blocks": 256, "max_num_seqs": 24, "max_model_len": 192,
    "max_num_batched_tokens": 512, "block_size": 16,
}  # fmt: skip
_NEIGHBOURS = 6
_FIRST_NEIGHBOUR = 5_000_000  # a number that no odd message aborts
_NEIGHBOUR_TOKENS = 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def core(model: Path) -> WiredCore:
    return WiredCore(model, **_OPTIONS)


def neighbours(first_id: int) -> list[Request]:
    return [
        Request(
            id=first_id + index,
            prompt_token_ids=prompt,
            params=params,
            max_total_tokens=len(prompt) + _NEIGHBOUR_TOKENS,
            arrive_time=0.0,
        )
        for index, (prompt, params) in enumerate(
            reproducible_requests(_NEIGHBOURS, _NEIGHBOUR_TOKENS)
        )
    ]


def answers(core: WiredCore, requests: list[Request]) -> list[list[int]]:
    core.send(*encode(AddBody(requests)))
    numbers = [request.id for request in requests]
    core.turn_until_done(set(numbers))
    return [core.sockets.tokens[number] for number in numbers]


def assert_odd_messages_end_alone(core: WiredCore, count: int, seed: int) -> None:
    """Send so many of them beside neighbours, which always run."""
    expected = answers(core, neighbours(1))
    drawn = OddMessages(seed, core.config.model.vocab_size)
    sent, rounds = 0, 0
    while sent < count:
        rounds += 1
        beside = neighbours(_FIRST_NEIGHBOUR + 10 * rounds)
        core.send(*encode(AddBody(beside)))
        open_ids = {request.id for request in beside}
        while not open_ids <= core.sockets.finished.keys():
            for _ in range(20 * (sent < count)):
                core.send(*drawn.message())
                sent += 1
            core.turn()
        assert [core.sockets.tokens[request.id] for request in beside] == expected
    core.turn_until_done(drawn.asked)
    told = [len(core.sockets.finished[number]) for number in drawn.asked]
    assert told == [1] * len(drawn.asked), "each request ends once"
    assert not core.sockets.malformed
    assert core.core.check_integrity() == 0


def test_odd_requests_at_the_cores_wire_end_alone(core: WiredCore) -> None:
    assert_odd_messages_end_alone(core, 3_000, seed=1)


@pytest.mark.slow
def test_a_hundred_thousand_odd_requests_at_the_cores_wire_end_alone(core: WiredCore) -> None:
    assert_odd_messages_end_alone(core, 100_000, seed=2)


def test_values_that_a_type_refuses_leave_the_messages_other_requests_alone(
    core: WiredCore,
) -> None:
    good, bad = neighbours(1)[:2]
    body = AddBody([good, bad])
    kind, payload = encode(body)
    broken = payload.replace(b"\xabtemperature\xcb\x3f\xf0", b"\xabtemperature\xcb\xff\xf0")
    assert broken != payload
    core.send(kind, broken)
    core.turn_until_done({good.id, bad.id})
    assert core.sockets.finished[bad.id][0].param == "temperature"
    assert len(core.sockets.tokens[good.id]) == _NEIGHBOUR_TOKENS


def test_a_nested_message_is_refused_and_no_end(core: WiredCore) -> None:
    for depth in (1_000, 100_000):
        args = b"\x91" * depth + b"\x90"
        call = b"\x83\xa7call_id\x01\xa6method\xa1x\xa4args" + args
        core.send(EngineCoreRequestType.UTILITY.value, call)
        core.turn()
    assert core.sockets.malformed == 2
    assert len(answers(core, neighbours(1))) == _NEIGHBOURS


@pytest.mark.parametrize("at", [0, 2, 5])
def test_a_row_whose_set_up_fails_ends_alone(
    core: WiredCore, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Were a check to miss something: the fault is that row's."""
    expected = answers(core, neighbours(1))
    enter = SamplingState.enter

    def failing(state: SamplingState, rows: tuple[NewRow, ...]) -> None:
        if any(row.request_id == 101 + at and row.params.logprobs is not None for row in rows):
            raise OverflowError("a value that no column holds")
        enter(state, rows)

    monkeypatch.setattr(SamplingState, "enter", failing)
    requests = neighbours(101)
    core.send(*encode(AddBody(requests)))
    core.turn_until_done({request.id for request in requests})
    (end,) = core.sockets.finished[101 + at]
    assert (end.reason, end.param) == ("error", None)
    assert "OverflowError" in end.detail
    others = [index for index in range(_NEIGHBOURS) if index != at]
    found = [core.sockets.tokens[101 + index] for index in others]
    assert found == [expected[index] for index in others]
    assert core.core.check_integrity() == 0


def test_a_row_whose_reasoning_cannot_be_followed_ends_alone(
    core: WiredCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answers(core, neighbours(1))
    push = _Thought.push

    def failing(thought: _Thought, token_id: int) -> None:
        if thought._budget.tokens == 3:
            raise IndexError("a mark without tokens")
        push(thought, token_id)

    monkeypatch.setattr(_Thought, "push", failing)
    requests = neighbours(101)
    budget = ThinkingBudget(3, True, (4,), (5,))
    odd = Request(200, [5, 6, 7], SamplingParams(temperature=0.0, thinking=budget), 30, 0.0)
    core.send(*encode(AddBody([*requests, odd])))
    core.turn_until_done({200, *(request.id for request in requests)})
    assert core.sockets.finished[200][0].reason == "error"
    assert [core.sockets.tokens[request.id] for request in requests] == expected


def test_plain_rows_take_the_slots_of_those_that_fail() -> None:
    entered: list[int] = []

    def enter(rows: tuple[NewRow, ...]) -> None:
        for row in rows:
            if row.params.temperature == 0.5:
                raise ValueError("no such temperature")
            entered.append(row.request_id)

    plain = NewRow(
        slot=0,
        request_id=1,
        token_ids=np.array([5], dtype=np.int32),
        num_prompt_tokens=1,
        block_ids=([],),
        params=SamplingParams(),
        seed=7,
    )
    bad = replace(plain, slot=1, request_id=2, params=SamplingParams(temperature=0.5))
    assert enter_rows((plain, bad), enter) == (
        (2, "its parameters could not be set up: ValueError"),
    )
    assert entered[-2:] == [1, 2]
    assert enter_rows((plain,), enter) == ()
