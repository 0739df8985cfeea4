"""A fault at every step between two engines: each request is answered as by one engine, in time,
and both engines hold no block soon after.

Sockets are real, and the engines' clock is the test's: it stands still until a fault has happened
that only a deadline or a lease can end. So a slow machine ends nothing early, and what does not
end by itself is seen.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from atom.kv_transfer_config.values import TRANSPORTS
from atom.model_engine.kv_transfer import setup
from atom.model_engine.kv_transfer.pulls import RENEWALS_PER_LEASE
from atom.model_engine.transfer_legs import TransferResult
from atom.model_engine.wire.engine_protocol import AddBody, encode
from atom.sampling_params import SamplingParams
from tests.support.engine_core.frame_proxy import Action, Fault, FrameProxy
from tests.support.engine_core.transfer_pair import TransferPair
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.random_search import FRESH_SEEDS

_TIMEOUT, _LEASE = 20.0, 30.0
_STEPS = (
    ("hello", 0),
    ("welcome", 0),
    ("want", 0),
    ("page", 0),
    ("page", 3),
    ("have", 0),
    ("done", 0),
)
_BY = ("shm", "tcp")
_DRAWN = 200 if FRESH_SEEDS else 6
# Faults after which a connection stays open and silent: nothing but the clock ends the wait. A
# frame that waits for the next one is late for ever where none follows.
_SILENT = (Action.STALL, Action.DROP, Action.SWAP)


def cases() -> Iterator[tuple[str, Action, tuple[str, int]]]:
    """Every action at every step, over one transport in turn and, in the long suite, over all."""
    for number, (action, step) in enumerate(itertools.product(Action, _STEPS)):
        for by in (*_BY, "nixl") if FRESH_SEEDS else (_BY[number % 2],):
            yield by, action, step


@dataclass
class Bench:
    """now: the seconds of both engines' clock."""

    pair: TransferPair
    prompts: int = 0
    now: float = 0.0

    def prompt(self) -> list[int]:
        """A prompt that neither engine has seen."""
        self.prompts += 1
        dice = random.Random(self.prompts)
        return [dice.randrange(10, 200) for _ in range(100)]

    def turn_until(self, condition: Callable[[], bool], what: str) -> None:
        self.pair.turn_until(condition, what)

    def let_go(self) -> None:
        """Turn until no block is held: at the latest when leases have run out."""
        self.now += _LEASE + 1
        self.turn_until(lambda: self.pair.held_blocks() == (0, 0), "both engines hold no block")


_PARAMS = SamplingParams(max_tokens=6, temperature=0.0)


@pytest.fixture(scope="module")
def bench_of(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], Bench]]:
    """The engines that exchange pages by a transport."""
    model = make_tiny_checkpoint(tmp_path_factory.mktemp("faults") / "model")
    benches: dict[str, Bench] = {}

    def bench(by: str) -> Bench:
        if by not in benches:
            times: dict[str, Any] = {"timeout_seconds": _TIMEOUT, "lease_seconds": _LEASE}
            clock = SimpleNamespace(monotonic=lambda: benches[by].now if by in benches else 0.0)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(setup, "time", clock)
                pair = TransferPair(model, transfer={"transports": TRANSPORTS[by], **times})
            benches[by] = Bench(pair)
        return benches[by]

    yield bench
    for each in benches.values():
        each.pair.close()


def answered(bench: Bench, fault: Fault) -> tuple[TransferResult, str]:
    """How a request ends whose frames meet a fault; whole, and in time."""
    pair, prompt = bench.pair, bench.prompt()
    expected = pair.answered_whole(prompt, _PARAMS)
    note = pair.prefill(prompt, _PARAMS)
    with FrameProxy((note.host, note.port), fault) as proxy:
        pair.place = proxy.address
        request = pair.begin_decode(prompt, _PARAMS, pair.leg_of(note))
        finished = pair.consumer.sockets.finished
        is_silent = fault.action in _SILENT
        bench.turn_until(
            lambda: request.id in finished or (is_silent and proxy.met),
            "the request ends, or the fault happens that leaves it waiting",
        )
        if request.id not in finished and not is_harmless(fault):
            bench.now += _TIMEOUT + 0.1
        answer = pair.finish(request)
        assert answer.outcome is not None
        assert answer.tokens == expected, fault
        assert answer.outcome.seconds < _TIMEOUT + 1, answer.outcome
        bench.turn_until(lambda: proxy.met, "the fault happens")
        bench.let_go()
    return answer.outcome.result, answer.outcome.reason


def is_harmless(fault: Fault) -> bool:
    """Whether every page arrives in spite of it."""
    if fault.kind == "done" or fault.action in (Action.LATE, Action.DOUBLE):
        return True
    return fault.action is Action.SWAP and fault.kind == "page"


@pytest.mark.singles
@pytest.mark.parametrize(
    ("by", "action", "step"),
    [
        pytest.param(by, action, step, id=f"{by}-{action}-{step[0]}-{step[1]}")
        for by, action, step in cases()
    ],
)
def test_every_step_survives_every_fault(
    bench_of: Callable[[str], Bench], by: str, action: Action, step: tuple[str, int]
) -> None:
    fault = Fault(step[0], action, step[1])
    result, reason = answered(bench_of(by), fault)
    if fault.kind in ("page", "have", "done") and is_harmless(fault):
        assert result is TransferResult.TRANSFERRED, reason
    assert result in (TransferResult.TRANSFERRED, TransferResult.RECOMPUTED)
    if result is TransferResult.RECOMPUTED:
        assert reason


@pytest.mark.parametrize("seed", range(_DRAWN))
def test_drawn_faults_under_load(bench_of: Callable[[str], Bench], seed: int) -> None:
    """Several requests through one connection, one of whose frames meets a fault."""
    dice = random.Random(seed)
    bench, kinds = bench_of(dice.choice(_BY)), ("want", "page", "have", "done", "renew")
    pair = bench.pair
    prompts = [bench.prompt() for _ in range(4)]
    wholes = [pair.request(prompt, _PARAMS, cache_salt="whole") for prompt in prompts]
    pair.producer.send(*encode(AddBody(wholes)))
    finished = pair.producer.sockets.finished
    pair.turn_until(lambda: all(each.id in finished for each in wholes), "the whole requests end")
    notes = [pair.prefill(prompt, _PARAMS) for prompt in prompts]
    fault = Fault(dice.choice(kinds), dice.choice(list(Action)), dice.randrange(8))
    with FrameProxy((notes[0].host, notes[0].port), fault) as proxy:
        pair.place = proxy.address
        begun = [
            pair.begin_decode(prompt, _PARAMS, pair.leg_of(note))
            for prompt, note in zip(prompts, notes, strict=True)
        ]
        if fault.kind == "renew":
            pair.consumer.turn()
            bench.now += _LEASE / RENEWALS_PER_LEASE + 0.1
        ended = pair.consumer.sockets.finished
        bench.turn_until(
            lambda: (fault.action in _SILENT and proxy.met) or all(r.id in ended for r in begun),
            "all requests end, or the fault happens that leaves some waiting",
        )
        if not all(request.id in ended for request in begun):
            bench.now += _TIMEOUT + 0.1
        answers = [pair.finish(request) for request in begun]
        tokens = pair.producer.sockets.tokens
        assert [answer.tokens for answer in answers] == [tokens[each.id] for each in wholes]
        for answer in answers:
            assert answer.outcome is not None
            longest = _TIMEOUT + 1 + _LEASE / RENEWALS_PER_LEASE
            assert answer.outcome.seconds < longest, (fault, answer.outcome)
        bench.let_go()
