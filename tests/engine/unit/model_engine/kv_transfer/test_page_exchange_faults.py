"""Pages between engines over a network that loses, doubles, delays, reorders, damages and cuts:
every request is answered, every wait ends in time, and no block outlives its lease."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from atom.kv_transfer_config.values import LoadFailurePolicy
from atom.model_engine.kv_transfer import kept_pages
from atom.model_engine.request import FinishReason
from atom.model_engine.transfer_legs import TransferResult
from tests.support.engine_core.builders_engine import make_request
from tests.support.engine_core.virtual_transfer import (
    TICK_SECONDS,
    Faults,
    Network,
    VirtualEngine,
    decode_request,
    prefill_request,
)
from tests.support.random_search import FRESH_SEEDS

_LIVES = 1000 if FRESH_SEEDS else 40
_STOPPED_SECONDS = 25.0  # longest for which a producer's process stands still
_WINDOWS: tuple[tuple[int | None, ...], ...] = ((None,), (None, 9), (7, 13), (None, None, 5))


def faults_of(dice: random.Random) -> Faults:
    """Some kinds of faults, each rare or frequent."""
    names = ("lost", "doubled", "damaged", "cut")
    chosen = {name: dice.choice((0.0, 0.0, 0.05, 0.4)) for name in names}
    return Faults(**chosen, delay_seconds=dice.choice((0.0, 0.3, 3.0, 25.0)))


class Life:
    """A producer and two consumers, and divided requests whose prompts share beginnings."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.network = Network(self.dice)
        windows = self.dice.choice(_WINDOWS)
        sizes = {"num_blocks": self.dice.choice((48, 64, 160)), "windows": windows}
        self.producer = VirtualEngine(self.network, "producer", **sizes)
        self.consumers = [
            VirtualEngine(self.network, f"consumer-{number}", **sizes) for number in range(2)
        ]
        self.network.faults = faults_of(self.dice)
        self._stops = self.dice.random() < 0.2
        self._stopped_until = 0.0
        self._next = 0
        self._asked: dict[int, list[int]] = {}  # prefill legs, and their prompts
        self.decodes: list[tuple[VirtualEngine, int]] = []
        self.aborted: set[int] = set()
        stems = [[self.dice.randrange(10, 40) for _ in range(20)] for _ in range(3)]
        self._prompts = [
            self.dice.choice(stems)[: self.dice.randrange(21)]
            + [self.dice.randrange(10, 99) for _ in range(self.dice.randrange(1, 30))]
            for _ in range(8)
        ]

    def number(self) -> int:
        self._next += 1
        return self._next

    def begin(self) -> None:
        """Send a prefill leg."""
        number, prompt = self.number(), self.dice.choice(self._prompts)
        salt = self.dice.choice(("", "", "tenant"))
        self._asked[number] = prompt
        self.producer.add(prefill_request(number, prompt, cache_salt=salt))

    def pass_on(self) -> None:
        """Send the decode legs of the prefill legs that ended, but for a few."""
        for number in [each for each in self._asked if each in self.producer.finished]:
            prompt, row = self._asked.pop(number), self.producer.finished[number]
            if row.ticket is None or not row.ticket.ticket or self.dice.random() < 0.1:
                continue
            for _ in range(2 if self.dice.random() < 0.1 else 1):
                consumer, decode = self.dice.choice(self.consumers), self.number()
                salt = self.dice.choice(("", "", "tenant"))
                consumer.add(decode_request(decode, prompt, row.ticket, cache_salt=salt))
                self.decodes.append((consumer, decode))

    def abort(self) -> None:
        if self.decodes:
            consumer, number = self.dice.choice(self.decodes)
            consumer.abort(number)
            self.aborted.add(number)

    def tick(self) -> None:
        self.network.tick()
        for engine in self.consumers:
            engine.turn()
        if self.network.now >= self._stopped_until:
            self.producer.turn()

    def stop(self) -> None:
        """Let the producer's process stand still for a while, as a signal does."""
        self._stopped_until = self.network.now + self.dice.uniform(0, _STOPPED_SECONDS)

    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            if self.dice.random() < 0.3:
                self.begin()
            if self.dice.random() < 0.03:
                self.abort()
            if self._stops and self.dice.random() < 0.02:
                self.stop()
            self.tick()
            self.pass_on()

    def all_ended(self) -> bool:
        return all(number in consumer.finished for consumer, number in self.decodes)

    def settle(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        for _ in range(int(seconds / TICK_SECONDS)):
            if done():
                return
            self.tick()
        raise AssertionError(f"not within {seconds} s: {what}")


@pytest.mark.sampled(14)
@pytest.mark.parametrize("seed", range(_LIVES))
def test_faults_cost_computations_alone(seed: int) -> None:
    life = Life(seed)
    life.run(150)
    timeout, lease = life.producer.config.timeout_seconds, life.producer.config.lease_seconds
    life.settle(life.all_ended, timeout + 20, "every decode leg ends")
    for consumer, number in life.decodes:
        row = consumer.finished[number]
        if number in life.aborted and row.reason == FinishReason.ABORT:
            continue
        assert row.reason in (FinishReason.STOP, FinishReason.LENGTH), row
        at, outcome = consumer.outcomes[number]
        assert at - consumer.entered[number] <= timeout + 1, outcome
    life.settle(
        lambda: not any(each.held_blocks for each in (life.producer, *life.consumers)),
        # A renewal may come so late, and a process that stands still frees nothing.
        lease + 1 + life.network.faults.delay_seconds + _STOPPED_SECONDS,
        "no block is held past its lease",
    )


def test_the_generated_lives_meet_every_end() -> None:
    """A search that never fails to transfer, or never does, would show nothing."""
    found: set[tuple[str, str]] = set()
    for seed in range(24):
        life = Life(seed)
        life.run(150)
        life.settle(life.all_ended, 40, "every decode leg ends")
        told = [each.outcomes.values() for each in life.consumers]
        found |= {(one.result.value, one.reason) for each in told for _, one in each}
    assert {"transferred", "recomputed", "local"} <= {result for result, _ in found}
    assert {"checksum", "gone", "missing", "timeout", "connection_lost"} <= {
        reason for _, reason in found
    }


def pair(**fields: object) -> tuple[VirtualEngine, VirtualEngine]:
    network = Network(random.Random(0))
    return (
        VirtualEngine(network, "producer", **fields),  # type: ignore[arg-type]
        VirtualEngine(network, "consumer", **fields),  # type: ignore[arg-type]
    )


def turn(engines: tuple[VirtualEngine, ...], seconds: float) -> None:
    for _ in range(round(seconds / TICK_SECONDS)):
        engines[0].network.tick()
        for engine in engines:
            engine.turn()


PROMPT = list(range(10, 40))


def test_a_ticket_that_nobody_reads_ends_with_its_lease() -> None:
    producer, consumer = pair()
    producer.add(prefill_request(1, PROMPT))
    turn((producer, consumer), 1)
    assert producer.held_blocks == 7
    turn((producer, consumer), producer.config.lease_seconds - 2)
    assert producer.held_blocks == 7
    turn((producer, consumer), 2)
    assert producer.held_blocks == 0
    assert producer.transfer.kept.tickets.expired_total == 1


def test_an_idle_producer_goes_on_until_every_page_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_pages, "_PIECE_BYTES", 1)  # a page a turn
    producer, consumer = pair()
    assert producer.transfer.seconds_left is None
    producer.add(prefill_request(1, PROMPT))
    turn((producer, consumer), 1)
    ticket = producer.finished[1].ticket
    assert ticket is not None
    assert producer.transfer.seconds_left == pytest.approx(30, abs=2)
    consumer.add(decode_request(2, PROMPT, ticket))
    turns = 0
    while 2 not in consumer.outcomes:
        turn((consumer,), TICK_SECONDS)
        producer.turn()  # the loop sleeps only as long as it says
        sending = producer.transfer.seconds_left
        turns += 1
        assert turns < 20
        assert sending == 0 or turns == 1 or turns >= 7, "there are pages to send"
    assert consumer.outcomes[2][1].tokens == 28
    turn((producer, consumer), 1)
    assert producer.transfer.seconds_left is None, "nothing is kept"


def test_a_consumer_without_room_renews_the_lease_until_it_gives_up() -> None:
    producer, consumer = pair(num_blocks=16, max_held_fraction=1.0)
    producer.add(prefill_request(1, PROMPT))
    turn((producer, consumer), 1)
    ticket = producer.finished[1].ticket
    assert ticket is not None
    taken = consumer.scheduler.blocks.pool.allocate(16)
    consumer.add(decode_request(2, PROMPT, ticket))
    turn((producer, consumer), consumer.config.timeout_seconds - 1)
    assert producer.held_blocks == 7, "it still waits"
    consumer.scheduler.blocks.pool.free(taken)
    turn((producer, consumer), 2)
    _, outcome = consumer.outcomes[2]
    assert outcome.result is TransferResult.TRANSFERRED
    assert producer.held_blocks == 0


def test_prefill_legs_beyond_the_share_are_refused_until_tickets_end() -> None:
    producer, consumer = pair(num_blocks=32)
    for number in range(1, 4):
        producer.add(prefill_request(number, [number, *PROMPT]))
    assert producer.finished[3].reason == FinishReason.ABORT
    assert "--kv-transfer-max-held-fraction" in producer.finished[3].detail
    turn((producer, consumer), 1)
    first = producer.finished[1].ticket
    assert first is not None
    consumer.add(decode_request(9, [1, *PROMPT], first))
    turn((producer, consumer), 1)
    producer.add(prefill_request(4, [4, *PROMPT]))
    turn((producer, consumer), 1)
    assert producer.finished[4].ticket is not None


def test_a_prompt_that_lacked_blocks_is_computed_when_tickets_end() -> None:
    """Nothing else frees blocks on an idle producer."""
    producer, consumer = pair(num_blocks=16, max_held_fraction=0.75)
    producer.add(prefill_request(1, PROMPT))
    turn((producer, consumer), 1)
    assert producer.held_blocks == 7
    producer.add(make_request(2, list(range(50, 90)), max_tokens=2))
    turn((producer, consumer), 5)
    assert 2 not in producer.finished
    turn((producer, consumer), producer.config.lease_seconds)
    assert producer.finished[2].reason == FinishReason.LENGTH


def test_a_leg_that_could_never_be_held_is_computed_without_a_ticket() -> None:
    producer, consumer = pair(num_blocks=16, max_held_fraction=0.25)
    producer.add(prefill_request(1, PROMPT))
    turn((producer, consumer), 1)
    note = producer.finished[1].ticket
    assert note is not None
    assert (note.ticket, note.block_ids) == ("", [])
    assert producer.held_blocks == 0


def test_an_aborted_leg_gives_up_its_promise() -> None:
    producer, _ = pair(num_blocks=32)
    for number in range(1, 20):
        producer.add(prefill_request(number, PROMPT))
        producer.abort(number)
    assert producer.transfer.kept.tickets.num_blocks == 0


def test_the_policy_fail_ends_the_request_where_recompute_computes_it() -> None:
    ends = {}
    for policy in LoadFailurePolicy:
        producer, consumer = pair(load_failure_policy=policy)
        producer.add(prefill_request(1, PROMPT))
        turn((producer, consumer), 1)
        ticket = producer.finished[1].ticket
        assert ticket is not None
        producer.channel.vanish()
        consumer.add(decode_request(2, PROMPT, ticket))
        turn((producer, consumer), 3)
        ends[policy] = (consumer.outcomes[2][1].result, consumer.finished[2].reason)
        assert consumer.held_blocks == 0
    assert ends == {
        LoadFailurePolicy.RECOMPUTE: (TransferResult.RECOMPUTED, FinishReason.LENGTH),
        LoadFailurePolicy.FAIL: (TransferResult.FAILED, FinishReason.ERROR),
    }


def test_an_emptied_cache_voids_tickets_and_waits() -> None:
    producer, consumer = pair()
    producer.add(prefill_request(1, PROMPT))
    producer.add(prefill_request(2, [5, *PROMPT]))
    turn((producer, consumer), 1)
    tickets = [producer.finished[number].ticket for number in (1, 2)]
    producer.transfer.void()
    producer.scheduler.blocks.reset_prefix_cache()
    assert producer.held_blocks == 0
    assert all(tickets)
    consumer.add(decode_request(3, PROMPT, tickets[0]))  # type: ignore[arg-type]
    turn((producer, consumer), 1)
    assert consumer.outcomes[3][1].reason == "gone"
    producer.channel.vanish()
    producer.network.faults.delay_seconds = 100
    consumer.add(decode_request(4, [5, *PROMPT], tickets[1]))  # type: ignore[arg-type]
    consumer.transfer.void()
    consumer.scheduler.blocks.reset_prefix_cache()
    turn((producer, consumer), 1)
    assert consumer.outcomes[4][1].reason in ("cache_emptied", "unreachable")
    assert consumer.finished[4].reason == FinishReason.LENGTH
