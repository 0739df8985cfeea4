"""Models that share a device by sleep and wake, simulated: nobody starves, a request that runs is
preempted only after its bound, and time does not go by on waking up."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.entrypoints.swap.shared_device import SharedDevice, Sharing, SharingModel, Turn
from atom.entrypoints.swap.swap_policy import Decision, ModelView, SwapRule, decide

SWAP_SECONDS = 0.7
LONGEST_REQUEST = 5.0
SLACK = 1e-6


@dataclass
class Life:
    """Requests for models of one device, from the first to the last. arrivals: when, for which."""

    models: list[SharingModel]
    sharing: Sharing
    arrivals: list[tuple[float, str]]
    draws: random.Random
    longest_request: float = LONGEST_REQUEST
    waits: list[float] = field(default_factory=list)
    wakes: int = 0
    preempted: int = 0

    def __post_init__(self) -> None:
        self.device = SharedDevice(self.models, self.sharing)
        self.pinned = {model.name for model in self.models if model.pinned}
        self.awake = set(self.pinned)
        self.woke = dict.fromkeys(self.awake, 0.0)
        for name in self.awake:
            self.device.set_awake(name, 0.0)
        self.running: Counter[str] = Counter()
        self.ends: dict[int, tuple[str, float]] = {}  # of requests that compute, by ticket
        self.left: dict[int, tuple[str, float]] = {}  # seconds of work of preempted ones
        self.stopped: dict[str, float] = {}  # since when a model's are preempted
        self.held: dict[int, tuple[str, float]] = {}
        self.order = itertools.count()
        self.events: list[tuple[float, int, str, object]] = []

    def happen(self, at: float, kind: str, what: object = None) -> None:
        heapq.heappush(self.events, (at, next(self.order), kind, what))

    def run(self) -> None:
        for ticket, (at, name) in enumerate(self.arrivals):
            self.happen(at, "arrival", (ticket, name))
        while self.events:
            now, _, kind, what = heapq.heappop(self.events)
            if kind == "arrival":
                ticket, name = what  # type: ignore[misc]
                self.held[ticket] = (name, now)
                self.device.arrive(name, ticket, now)
            elif kind == "end":
                if self.ends.get(what, ("", -1.0))[1] != now:  # type: ignore[call-overload]
                    continue  # preempted since
                name, _ = self.ends.pop(what)  # type: ignore[call-overload]
                self.running[name] -= 1
                self.device.end(name, now)
            elif kind == "changed":
                self.finish(what, now)  # type: ignore[arg-type]
            self.follow(self.device.turn(now), now)

    def finish(self, turn: Turn, now: float) -> None:
        if turn.wake is not None:
            self.awake.add(turn.wake)
            for ticket in [each for each, (name, _) in self.left.items() if name == turn.wake]:
                self.compute(ticket, turn.wake, now, self.left.pop(ticket)[1])
            self.woke[turn.wake] = now
            self.wakes += 1
        self.device.changed(now)

    def follow(self, turn: Turn, now: float) -> None:
        for ticket in turn.admitted:
            name, came = self.held.pop(ticket)
            assert name in self.awake
            assert name != turn.sleep
            self.waits.append(now - came)
            self.running[name] += 1
            self.compute(ticket, name, now, self.draws.uniform(0.1, self.longest_request))
        if turn.sleep is not None:
            self.check_may_sleep(turn.sleep, now)
            self.awake.remove(turn.sleep)
            self.preempt(turn.sleep, now)
        if turn.sleep is not None or turn.wake is not None:
            self.happen(now + SWAP_SECONDS, "changed", turn)
        elif turn.again_at is not None:
            assert turn.again_at > now - SLACK
            self.happen(max(now, turn.again_at), "again")
        held = sum(each.share for each in self.models if each.name in {*self.awake, turn.wake})
        assert held <= self.sharing.capacity + SLACK

    def compute(self, ticket: int, name: str, now: float, seconds: float) -> None:
        self.ends[ticket] = (name, now + seconds)
        self.happen(now + seconds, "end", ticket)

    def preempt(self, name: str, now: float) -> None:
        for ticket in [each for each, (other, _) in self.ends.items() if other == name]:
            self.left[ticket] = (name, self.ends.pop(ticket)[1] - now)
            self.preempted += 1
            self.stopped[name] = now

    def check_may_sleep(self, name: str, now: float) -> None:
        """It computes nothing, or has computed for its whole bound; nobody wants it awake, and it
        was not woken up in vain."""
        assert name not in self.pinned
        rule = self.sharing.rule
        since = [came for other, came in self.held.values() if other not in self.awake]
        since += [self.stopped[other] for other, _ in self.left.values()]
        longest = max(now - came for came in since)
        if self.running[name]:
            assert longest >= rule.most_wait + rule.most_drain - SLACK
            assert now - self.woke[name] >= rule.most_drain - SLACK
        rested = now - self.woke[name] >= rule.least_awake - SLACK
        assert rested or longest >= rule.most_wait - SLACK

    @property
    def longest_turn(self) -> float:
        """How long the first in the queue may take until it computes."""
        changes = (len(self.models) + 1) * SWAP_SECONDS
        rule = self.sharing.rule
        computes = rule.least_awake + rule.most_drain
        return rule.most_wait + min(self.longest_request, computes) + changes


def zipf_arrivals(
    names: list[str], count: int, mean_gap: float, draws: random.Random
) -> Iterator[tuple[float, str]]:
    weights = [1 / (rank + 1) for rank in range(len(names))]
    now = 0.0
    for name in draws.choices(names, weights, k=count):
        now += draws.expovariate(1 / mean_gap)
        yield now, name


@given(
    seed=st.integers(0, 2**32),
    shares=st.lists(st.sampled_from([0.1, 0.3, 0.45, 0.9]), min_size=2, max_size=10),
    pins_one=st.booleans(),
    mean_gap=st.sampled_from([0.02, 0.3, 2.0]),
    rule=st.builds(
        SwapRule,
        st.sampled_from([0.0, 3.0, 10.0]),
        st.sampled_from([0.0, 1.0, 5.0]),
        st.sampled_from([0.5, 2.0, 10.0]),
    ),
    longest=st.sampled_from([LONGEST_REQUEST, 100.0]),
)
def test_everybody_has_a_turn_in_time(
    seed: int,
    shares: list[float],
    pins_one: bool,
    mean_gap: float,
    rule: SwapRule,
    longest: float,
) -> None:
    draws = random.Random(seed)
    names = [f"m{number}" for number in range(len(shares))]
    if pins_one:
        shares = [0.3, *(min(share, 0.6) for share in shares[1:])]
    models = [
        SharingModel(name, share, pins_one and name == "m0")
        for name, share in zip(names, shares, strict=True)
    ]
    arrivals = list(zipf_arrivals(names, 120, mean_gap, draws))
    life = Life(models, Sharing(0.9, rule), arrivals, draws, longest)
    life.run()
    assert len(life.waits) == len(arrivals)
    assert (life.held, life.left, life.ends) == ({}, {}, {})
    assert max(life.waits) <= len(models) * life.longest_turn
    assert life.wakes <= len(arrivals) + life.preempted


def test_two_that_are_asked_for_by_turns_do_not_swap_for_every_request() -> None:
    names = ["a", "b"]
    arrivals = [(0.05 * number, names[number % 2]) for number in range(2000)]
    models = [SharingModel(name, 0.9) for name in names]
    life = Life(models, Sharing(0.9, SwapRule(10.0, 1.0)), arrivals, random.Random(1))
    life.run()
    assert len(life.waits) == len(arrivals)
    assert life.wakes <= 100 / 10.0 + 2  # in 100 s, a turn takes the longest wait at least


def test_a_request_without_end_closes_a_model_to_no_one_else() -> None:
    """One client's long requests for one model: another model's request waits for the bounds and
    for one swap, and the long ones go on when it is done."""
    rule = SwapRule(most_wait=10.0, least_awake=1.0, most_drain=5.0)
    device = SharedDevice([SharingModel("a", 0.9), SharingModel("b", 0.9)], Sharing(0.9, rule))
    device.arrive("a", 1, 0.0)
    assert device.turn(0.0).wake == "a"
    device.changed(0.0)
    assert device.turn(0.0).admitted == (1,)
    device.arrive("b", 2, 1.0)
    assert device.turn(1.0).again_at == 11.0
    assert device.turn(11.0) == Turn(again_at=16.0)
    assert device.turn(16.0).sleep == "a"
    device.changed(16.5)
    assert device.turn(16.5).wake == "b"
    device.changed(17.0)
    assert device.turn(17.0).admitted == (2,)
    device.end("b", 18.0)
    assert device.turn(18.0).sleep == "b"
    device.changed(18.5)
    assert device.turn(18.5).wake == "a"
    device.changed(19.0)
    assert device.turn(19.0) == Turn()  # its request goes on, and was admitted before
    device.end("a", 30.0)
    assert device.turn(30.0) == Turn()


def test_a_model_whose_preempted_requests_have_left_asks_for_no_turn() -> None:
    rule = SwapRule(most_wait=0.0, least_awake=0.0, most_drain=1.0)
    device = SharedDevice([SharingModel("a", 0.9), SharingModel("b", 0.9)], Sharing(0.9, rule))
    device.set_awake("a", 0.0)
    device.arrive("a", 1, 0.0)
    assert device.turn(0.0).admitted == (1,)
    device.arrive("b", 2, 0.0)
    assert device.turn(1.0).sleep == "a"
    device.changed(1.5)
    device.end("a", 1.6)  # its client has left
    assert device.turn(1.6).wake == "b"
    device.changed(2.0)
    assert device.turn(2.0).admitted == (2,)
    device.end("b", 3.0)
    assert device.turn(3.0) == Turn()


def test_models_that_fit_together_never_swap() -> None:
    arrivals = list(zipf_arrivals(["a", "b", "c"], 200, 0.1, random.Random(1)))
    models = [SharingModel(name, 0.3) for name in "abc"]
    life = Life(models, Sharing(0.9), arrivals, random.Random(2))
    life.run()
    assert life.wakes == 3


def view(name: str, **fields: object) -> ModelView:
    values: dict[str, object] = {
        "share": 0.4, "pinned": False, "awake": True, "running": 0, "waiting_since": None,
        "used": 0.0, "woke": 0.0, **fields,
    }  # fmt: skip
    return ModelView(name, **values)  # type: ignore[arg-type]


ASKED = view("asked", awake=False, waiting_since=100.0)


@pytest.mark.parametrize(
    ("others", "now", "expected"),
    [
        ([view("a", used=1.0)], 101.0, Decision(wake="asked")),
        ([view("a", used=2.0), view("b", used=1.0)], 101.0, Decision(sleep="b")),
        ([view("a", pinned=True), view("b", used=1.0)], 101.0, Decision(sleep="b")),
        ([view("a", running=1), view("b", woke=100.5)], 101.0, Decision(again_at=101.5)),
        ([view("a", running=1), view("b", running=1, woke=5.0)], 105.0, Decision(again_at=110.0)),
        (
            [view("a", running=1), view("b", running=1, woke=5.0)],
            110.0,
            Decision(closed=frozenset("a"), again_at=120.0),
        ),
        (
            [view("a", running=1), view("b", running=1, woke=5.0)],
            120.0,
            Decision(sleep="a", closed=frozenset("a")),
        ),
        (
            [view("a", running=1), view("b", woke=109.9)],
            110.0,
            Decision(sleep="b", closed=frozenset("b")),
        ),
    ],
    ids=[
        "room",
        "longest unused",
        "pinned",
        "just woken",
        "all busy",
        "overdue",
        "drained",
        "overdue, idle",
    ],
)
def test_who_makes_room(others: list[ModelView], now: float, expected: Decision) -> None:
    assert decide([*others, ASKED], 0.9, SwapRule(10.0, 1.0), now) == expected


def test_one_that_cannot_wake_up_lets_the_others_go_on() -> None:
    device = SharedDevice([SharingModel("a", 0.9), SharingModel("b", 0.9)], Sharing(0.9))
    device.arrive("a", 1, 0.0)
    assert device.turn(0.0).wake == "a"
    device.arrive("b", 2, 0.1)
    assert device.turn(0.1) == Turn()  # one change at a time
    assert device.failed() == [1]
    assert device.turn(0.2).wake == "b"
    device.changed(0.3)
    assert device.turn(0.3).admitted == (2,)
