"""Pages of a producer that are slower than computing are computed, and are tried again in time."""

from __future__ import annotations

import random

import pytest

from atom.model_engine.kv_transfer.pulling.pull_speeds import PATIENCE
from atom.model_engine.schedule import read_speed
from atom.model_engine.schedule.read_speed import PROBE_SECONDS
from atom.model_engine.transfer_legs import TransferOutcome, TransferResult
from tests.support.engine_core.virtual_transfer import (
    TICK_SECONDS,
    Network,
    VirtualEngine,
    decode_request,
    prefill_request,
)

TOKENS = 28  # whose pages are read, of each prompt
COMPUTE_SECONDS = 0.1  # of these tokens


class _Pace:
    seconds_a_token = COMPUTE_SECONDS / TOKENS


class Pair:
    """Requests whose prompts begin in different ways, one after the other."""

    def __init__(self) -> None:
        self.network = Network(random.Random(0))
        sizes = {"num_blocks": 400}
        self.producer = VirtualEngine(self.network, "producer", **sizes)  # type: ignore[arg-type]
        self.consumer = VirtualEngine(self.network, "consumer", **sizes)  # type: ignore[arg-type]
        self.consumer.transfer.speeds.pace = _Pace()  # type: ignore[assignment]
        self._number = 0

    def turn(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_SECONDS)):
            self.network.tick()
            for engine in (self.producer, self.consumer):
                engine.turn()

    def begin(self) -> int:
        """Compute a prompt and send its decode leg."""
        self._number += 2
        prompt = [self._number, *range(200, 229)]
        self.producer.add(prefill_request(self._number, prompt))
        self.producer.turn()
        while self._number not in self.producer.finished:
            self.producer.turn()
        note = self.producer.finished[self._number].ticket
        assert note is not None
        self.consumer.add(decode_request(self._number + 1, prompt, note))
        return self._number + 1

    def ask(self, network_seconds: float) -> TransferOutcome:
        """network_seconds: by which each message is late, at most."""
        self.network.faults.delay_seconds = network_seconds
        number = self.begin()
        while number not in self.consumer.outcomes:
            self.turn(TICK_SECONDS)
        return self.consumer.outcomes[number][1]


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setattr(read_speed, "LEAST_MEASURED_BYTES", 1)
    monkeypatch.setattr(read_speed, "MOST_MEASURED_BYTES", 24 * 21)
    return Pair()


def is_slower(outcome: TransferOutcome) -> bool:
    return (outcome.result, outcome.reason) == (TransferResult.RECOMPUTED, "slower")


def test_pages_may_take_several_times_as_long_as_computing(pair: Pair) -> None:
    assert PATIENCE * COMPUTE_SECONDS > 4 * TICK_SECONDS
    for _ in range(10):
        outcome = pair.ask(network_seconds=0)
        assert outcome.result is TransferResult.TRANSFERRED
        assert outcome.seconds > COMPUTE_SECONDS


def test_a_producer_that_is_slow_is_left_and_found_again(pair: Pair) -> None:
    assert pair.ask(network_seconds=0).result is TransferResult.TRANSFERRED
    slow = [pair.ask(network_seconds=15.0) for _ in range(4)]
    assert slow[0].result is TransferResult.TRANSFERRED
    assert is_slower(slow[-1])
    pair.turn(16)  # as late as a message may be
    assert pair.producer.held_blocks == 0, "the tickets of computed prompts are given back"
    since = pair.network.now
    while is_slower(outcome := pair.ask(network_seconds=0)):
        assert pair.network.now - since <= PROBE_SECONDS + 1
    assert outcome.result is TransferResult.TRANSFERRED
    assert pair.ask(network_seconds=0).result is TransferResult.TRANSFERRED, "the speed is known"


def test_a_probe_of_a_slow_producer_delays_one_request(pair: Pair) -> None:
    for _ in range(3):
        pair.ask(network_seconds=15.0)
    assert is_slower(pair.ask(network_seconds=15.0))
    pair.turn(PROBE_SECONDS)
    numbers = [pair.begin() for _ in range(6)]
    pair.turn(1)
    told = [pair.consumer.outcomes.get(number) for number in numbers]
    assert told[0] is None, "the probe waits for its pages"
    assert all(each is not None and is_slower(each[1]) for each in told[1:])


def test_a_probe_that_is_aborted_or_lost_is_followed_by_another(pair: Pair) -> None:
    for _ in range(3):
        pair.ask(network_seconds=15.0)
    for end in ("abort", "void"):
        pair.turn(PROBE_SECONDS)
        number = pair.begin()
        pair.turn(1)
        assert number not in pair.consumer.outcomes
        if end == "abort":
            pair.consumer.abort(number)
        else:
            pair.consumer.transfer.void()
        assert is_slower(pair.ask(network_seconds=15.0))
        # A probe that took a second is repeated after twenty, or those between two probes.
        pair.turn(20)
    assert pair.ask(network_seconds=0).result is TransferResult.TRANSFERRED
