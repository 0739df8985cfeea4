"""A control call that is declared once reaches core and ranks, and its answer comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.control import (
    CONTROLS,
    RANK_CONTROLS,
    CheckIntegrity,
    CheckWeights,
    Control,
    CopyPages,
    LoadLora,
    MovePages,
    RankControl,
    ResetPrefixCache,
    Sleep,
    StartProfile,
    StopProfile,
    UnloadLora,
    UpdateWeights,
    WakeUp,
    When,
)
from atom.model_engine.executor.tensor_parallel.rank_main import follow_steps
from atom.model_engine.executor.tensor_parallel.step_codec import (
    decode_step,
    encode_batch,
    encode_control,
)
from atom.model_engine.wire.engine_protocol import UtilityBody

# Each call, and the message that clients of the engine have always sent for it.
CALLS: dict[Control[Any], tuple[str, list[Any]]] = {
    ResetPrefixCache(): ("reset_prefix_cache", []),
    CheckIntegrity(): ("check_integrity", []),
    StartProfile(): ("start_profile", []),
    StopProfile(): ("stop_profile", []),
    LoadLora(2, "folder/ä"): ("load_lora", [2, "folder/ä"]),
    UnloadLora(2): ("unload_lora", [2]),
    Sleep(1, True): ("sleep", [1, True]),
    Sleep(2): ("sleep", [2, False]),
    WakeUp(): ("wake_up", []),
    CheckWeights("new"): ("check_weights", ["new"]),
    UpdateWeights("new"): ("update_weights", ["new"]),
}
# A call that the core makes of itself, and no client.
OWN_CALLS: list[RankControl[Any]] = [
    MovePages(3, [(0, 1, 2)], [(1, 7, 8), (2, 0, 9)]),
    CopyPages(4, 1, [5, 6], True),
]
RANK_CALLS = [*(call for call in CALLS if isinstance(call, RankControl)), *OWN_CALLS]


class Recorded:
    """Has every method, and notes its calls; `adapters` and pages for engines are its own."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.adapters = self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def note(*args: Any, **named: Any) -> Any:
            self.calls.append(name)
            if name == "transferred_pages":
                return self
            for tell in filter(callable, args):
                tell(name)
            return name

        return note


class Receiver:
    """Gives a follower these messages, and then the end."""

    def __init__(self, *messages: bytearray) -> None:
        self._messages = [*messages, bytearray()]

    def receive(self) -> bytearray:
        return self._messages.pop(0)


def test_every_declared_call_is_tried_here() -> None:
    assert {type(call) for call in CALLS} == set(CONTROLS)
    assert len({kind.name for kind in CONTROLS}) == len(CONTROLS)
    assert {type(call) for call in RANK_CALLS} == set(RANK_CONTROLS.values())


@pytest.mark.parametrize("call", CALLS, ids=repr)
def test_a_call_travels_as_its_name_and_arguments(call: Control[Any]) -> None:
    name, args = CALLS[call]
    sent = msgspec.msgpack.encode(UtilityBody(7, call.name, list(call.args)))
    assert sent == msgspec.msgpack.encode(UtilityBody(7, name, args))
    received = msgspec.msgpack.decode(sent, type=UtilityBody)
    assert msgspec.convert(received.args, type(call)) == call


@pytest.mark.parametrize("call", CALLS, ids=repr)
def test_arguments_that_are_not_the_calls_own_are_refused(call: Control[Any]) -> None:
    own = list(call.args)
    wrong = [[*own, 1], *([*own[:at], object, *own[at + 1 :]] for at in range(len(own)))]
    if own and not isinstance(call, Sleep):
        wrong.append(own[:-1])
    for args in wrong:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(args, type(call))


@pytest.mark.parametrize("number", [0, -1, True, "1", None])
def test_an_adapter_is_loaded_by_a_number_from_one_on(number: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert([number, "folder"], LoadLora)


@pytest.mark.parametrize("call", CALLS, ids=repr)
def test_a_core_carries_out_the_method_of_the_calls_name_and_answers_once(
    call: Control[Any],
) -> None:
    core, answers = Recorded(), list[Any]()
    call.in_core(cast(Any, core), answers.append)
    assert core.calls == [call.name]
    assert len(answers) == 1


@pytest.mark.parametrize("call", RANK_CALLS, ids=repr)
def test_a_rank_is_told_the_same_call(call: RankControl[Any]) -> None:
    assert decode_step(encode_control(call)) == call


@pytest.mark.parametrize("call", RANK_CALLS, ids=repr)
def test_a_rank_carries_out_what_the_call_says(call: RankControl[Any]) -> None:
    rank = Recorded()
    call.on_rank(cast(Any, rank))
    of_parts = {
        "load_lora": ["read", "keep"],
        "unload_lora": ["drop"],
        "copy_pages": ["transferred_pages", "copy"],
    }
    assert rank.calls == of_parts.get(call.name, [call.name])


def test_an_adapter_that_a_rank_has_read_is_not_read_again() -> None:
    rank = Recorded()
    LoadLora(1, "folder").on_rank(cast(Any, rank), prepared="the adapter")
    assert rank.calls == ["keep"]


@pytest.mark.parametrize("call", RANK_CALLS, ids=repr)
def test_a_follower_ends_its_steps_before_a_call_between_steps(call: RankControl[Any]) -> None:
    runner = Recorded()
    runner.steps = runner  # type: ignore[attr-defined]
    step = encode_batch(
        ScheduledBatch(
            new_rows=(),
            block_appends=np.zeros((0, 3), np.int32),
            slots=np.zeros(1, np.intp),
            req_ids=np.zeros(1, np.int64),
            num_computed_tokens=np.ones(1, np.int32),
            num_scheduled_tokens=np.ones(1, np.int32),
            samples=np.ones(1, np.bool_),
            num_decodes=1,
        ),
        outstanding=1,
    )
    follow_steps(cast(Any, runner), cast(Any, Receiver(step, step, encode_control(call))))
    collected = ["collect"] * 2 if call.when is When.BETWEEN_STEPS else []
    alone = Recorded()
    call.on_rank(cast(Any, alone))
    assert runner.calls == ["submit", "submit", *collected, *alone.calls]
