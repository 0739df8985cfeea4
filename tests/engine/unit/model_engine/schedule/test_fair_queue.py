"""Each client gets its part of the engine, whatever the others send."""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.client_label import batch_label
from atom.model_engine.schedule.fair_queue import FairQueue
from atom.model_engine.schedule.fair_shares import MOST_DEPARTED, FairShares
from atom.model_engine.schedule.row_table import RowTable
from atom.model_engine.schedule.waiting_queue import rank_of
from atom.model_engine.sequence import Sequence
from tests.support.engine_core.builders_engine import FakeModel, make_request, make_scheduler

MAX_MODEL_LEN = 256


class Slots:
    """An engine that is nothing but slots: each step every row gets a token, then free slots go to
    who is next. begun: requests in the order they began; given: tokens by client."""

    def __init__(
        self, slots: int, *, weights: Mapping[str, float] | None = None, fair: bool = True
    ) -> None:
        self.rows = RowTable(slots, MAX_MODEL_LEN)
        self.queue = FairQueue(self.rows, weights=weights, fair=fair)
        self.numbers = itertools.count()
        self.begun: list[Sequence] = []
        self.given: Counter[str] = Counter()
        self.clock = 0.0

    def ask(self, client: str, prompt: int = 5, answer: int = 5, priority: int = 0) -> Sequence:
        sequence = Sequence(
            make_request(
                next(self.numbers), prompt, max_tokens=answer, arrive_time=self.clock,
                priority=priority, client_id=client,
            )
        )  # fmt: skip
        self.queue.add(sequence)
        return sequence

    @property
    def running(self) -> list[Sequence]:
        return [sequence for sequence in self.rows.sequences if sequence is not None]

    def step(self) -> None:
        self.clock += 1.0
        for sequence in self.running:
            self.rows.num_tokens[sequence.slot] += 1
            self.given[sequence.client_id] += 1
            if self.rows.num_tokens[sequence.slot] > self.rows.last_position[sequence.slot]:
                self.leave(sequence)
        self.queue.settle()
        while self.queue and self.rows.has_free_slot:
            self.begin(self.queue.first)

    def begin(self, sequence: Sequence) -> None:
        self.rows.enter(sequence)
        again = sequence.seed is not None
        sequence.seed = 0
        self.queue.admit(sequence, 0 if again else sequence.num_prompt_tokens)
        self.given[sequence.client_id] += 0 if again else sequence.num_prompt_tokens
        self.begun.append(sequence)

    def leave(self, sequence: Sequence) -> None:
        self.queue.end(sequence)
        self.rows.leave(sequence)

    def preempt(self, sequence: Sequence) -> None:
        self.queue.preempt(sequence)
        self.rows.leave(sequence)

    def until(self, condition: Callable[[], bool], steps: int = 20_000) -> None:
        for _ in range(steps):
            if condition():
                return
            self.step()
        raise AssertionError("it never came to that")

    def clients(self, first: int = 0) -> list[str]:
        """Of those that began from the `first` on."""
        return [sequence.client_id for sequence in self.begun[first:]]


# ---- the promises -------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 4, 64])
@pytest.mark.parametrize("steps", [0, 1, 40])
def test_a_newcomer_is_next_however_many_of_another_wait(slots: int, steps: int) -> None:
    engine = Slots(slots)
    for _ in range(300 + slots):
        engine.ask("many", prompt=20, answer=30)
    for _ in range(1 + steps):
        engine.step()
    begun = len(engine.begun)
    newcomer = engine.ask("one")
    engine.until(lambda: newcomer in engine.begun)
    assert engine.begun[begun] is newcomer


def test_stored_batches_of_all_owners_begin_after_the_requests_of_every_client() -> None:
    engine = Slots(4)
    for owner in ("", "key-ann", "key-bob"):
        for _ in range(100):
            engine.ask(batch_label(owner))
    for _ in range(20):
        engine.step()
    begun = len(engine.begun)
    for client in ("key-ann", "addr-1"):
        for _ in range(60):
            engine.ask(client)
    engine.until(lambda: sum(c in ("key-ann", "addr-1") for c in engine.clients(begun)) == 120)
    assert sum(client.startswith("batch/") for client in engine.clients(begun)) <= 120 / 20
    engine.until(lambda: len(engine.begun) == 420)


def test_a_client_that_asks_one_at_a_time_is_next_every_time() -> None:
    engine = Slots(2)
    for _ in range(300):
        engine.ask("many", prompt=20, answer=30)
    for _ in range(20):
        engine.step()
        begun = len(engine.begun)
        mine = engine.ask("one", prompt=3, answer=2)
        engine.until(lambda mine=mine: mine in engine.begun)  # type: ignore[misc]
        assert engine.begun.index(mine) == begun


def test_without_fairness_the_first_that_came_is_served_first() -> None:
    engine = Slots(1, fair=False)
    asked = [engine.ask(client) for client in ("a", "a", "b", "a", "c", "b")]
    engine.until(lambda: len(engine.begun) == len(asked))
    assert engine.begun == asked


def test_priority_counts_within_a_client_only() -> None:
    engine = Slots(1)
    engine.ask("a")
    engine.step()
    last = engine.ask("a", priority=5)
    urgent = engine.ask("a", priority=-100)
    other = engine.ask("b", priority=50)
    engine.until(lambda: len(engine.begun) == 4)
    assert engine.begun[1:] == [other, urgent, last]


def test_all_keys_of_one_address_have_one_share_together() -> None:
    engine = Slots(1)
    for number in range(100):
        engine.ask(f"crowd/{number}")
    for _ in range(100):
        engine.ask("alone")
    engine.until(lambda: len(engine.begun) == 100)
    shares = Counter(client.partition("/")[0] for client in engine.clients())
    assert abs(shares["crowd"] - shares["alone"]) <= 1
    inside = [client for client in engine.clients() if client != "alone"]
    assert len(set(inside)) == len(inside), "each of them once"


def test_who_comes_back_is_owed_nothing_for_having_been_away() -> None:
    engine = Slots(1)
    engine.ask("b")
    for _ in range(400):
        engine.ask("a")
    engine.until(lambda: len(engine.begun) == 100)
    for _ in range(100):
        engine.ask("b")
    first = len(engine.begun)
    engine.until(lambda: len(engine.begun) == first + 40)
    assert abs(engine.clients(first).count("b") - 20) <= 1


# ---- whatever comes -----------------------------------------------------------------------------


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(30))
def test_tokens_are_shared_by_weight_among_those_that_always_wait(seed: int) -> None:
    """As far as requests can be told apart: none is cut, and as many run as there are slots."""
    draw = random.Random(seed)
    names = "abcde"[: draw.randint(2, 5)]
    weights = {name: draw.choice([0.5, 1.0, 1.0, 2.0, 4.0]) for name in names}
    slots = draw.choice([1, 2, 7])
    engine = Slots(slots, weights=weights)
    sizes = {name: (draw.randint(1, 120), draw.randint(1, 120)) for name in names}
    waiting = dict.fromkeys(names, 0)

    def refill() -> None:
        for sequence in engine.begun[counted[0] :]:
            waiting[sequence.client_id] -= 1
        counted[0] = len(engine.begun)
        for name in names:
            while waiting[name] < slots + 1:
                waiting[name] += 1
                most_prompt, most_answer = sizes[name]
                engine.ask(name, draw.randint(1, most_prompt), draw.randint(1, most_answer))

    counted = [0]
    before: Counter[str] = Counter()
    for turn in range(6000):
        refill()
        engine.step()
        if turn == 500:
            before = Counter(engine.given)
    got = {name: (engine.given[name] - before[name]) / weights[name] for name in names}
    largest = 240 / min(weights.values())
    assert max(got.values()) - min(got.values()) <= 2 * (slots + 1) * largest


class Adversary:
    """Sends what could keep another waiting: bursts, long and short requests, urgent ones, ever new
    clients and keys, aborts, and what makes others be preempted."""

    def __init__(self, engine: Slots, draw: random.Random) -> None:
        self.engine, self.draw = engine, draw
        self.names = itertools.count()
        self.open: deque[Sequence] = deque(maxlen=50)

    def act(self) -> None:
        draw, engine = self.draw, self.engine
        for _ in range(draw.choice([0, 1, 1, 3]) if len(engine.queue) < 400 else 0):
            client = draw.choice(["a", "a", "b", f"c/{next(self.names)}", f"n{next(self.names)}"])
            size = draw.choice([(1, 1), (1, 100), (100, 1), (100, 100)])
            self.open.append(engine.ask(client, *size, priority=draw.choice([0, 0, -100])))
        chance = draw.random()
        running = engine.running
        if chance < 0.05 and running:
            engine.preempt(engine.queue.last_due(running))
        elif chance < 0.1 and self.open:
            sequence = draw.choice(self.open)
            self.open.remove(sequence)
            known = sequence in running or any(sequence is each for each in engine.queue)
            if known:
                engine.queue.end(sequence)
                if sequence in running:
                    engine.rows.leave(sequence)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", range(40))
def test_nothing_that_others_send_keeps_a_client_waiting_beyond_its_turn(seed: int) -> None:
    """When it comes, each client that is there may be owed no more than what was running for others
    meanwhile; who comes later is not served before it more than that."""
    draw = random.Random(seed)
    slots = draw.choice([1, 2, 5])
    engine = Slots(slots)
    adversary = Adversary(engine, draw)
    for _ in range(draw.choice([0, 30, 300])):
        engine.ask("a", draw.randint(1, 100), draw.randint(1, 100))
    for number in range(12):
        for _ in range(draw.randint(1, 60)):
            adversary.act()
            engine.step()
        there = {sequence.client_id.partition("/")[0] for sequence in engine.queue}
        there |= {sequence.client_id.partition("/")[0] for sequence in engine.running}
        begun = len(engine.begun)
        mine = engine.ask(f"victim {number}", 3, 2)
        for _ in range(3000):
            if mine in engine.begun[begun:]:
                break
            adversary.act()
            engine.step()
        else:
            raise AssertionError("it starved")
        before = engine.clients(begun)[: engine.begun[begun:].index(mine)]
        passed = Counter(client.partition("/")[0] for client in before)
        assert set(passed) <= there, "one that came later went before"
        assert len(before) <= (len(there) + 1) * (slots + 1)


@pytest.mark.parametrize("slots", [1, 3])
def test_ever_new_clients_cannot_starve_one_that_waits(slots: int) -> None:
    engine = Slots(slots)
    for _ in range(50):
        engine.ask("patient", 50, 50)
    for number in range(4000):
        engine.ask(f"new{number}", 50, 50)
        if number % 20 == 0:
            engine.step()
        while len(engine.queue) > 60:
            engine.step()
    engine.until(lambda: not engine.queue)
    assert engine.clients().count("patient") == 50
    last = max(at for at, client in enumerate(engine.clients()) if client == "patient")
    assert last < len(engine.begun) - 1000


ARRIVALS = st.lists(
    st.tuples(st.floats(0, 50), st.integers(-20, 20), st.integers(0, 2)), min_size=1, max_size=25
)


@given(ARRIVALS, st.integers(1, 3), st.integers(0, 99))
def test_one_client_alone_is_served_as_without_fairness(arrivals, slots, choices) -> None:
    """Whatever becomes of its requests."""
    fair, plain = Slots(slots), Slots(slots, fair=False)
    for engine, client in ((fair, "a/k"), (plain, "x")):
        source = random.Random(choices)
        for number, (arrive_time, priority, disturbance) in enumerate(arrivals):
            engine.clock = arrive_time
            engine.ask(client, 3, 1 + number % 4, priority)
            if disturbance == 1 and engine.running:
                engine.preempt(max(engine.running, key=rank_of))
            if disturbance == 2 and len(engine.queue):
                engine.queue.end(source.choice(sorted(engine.queue, key=rank_of)))
            engine.step()
        engine.until(lambda engine=engine: not engine.queue)
    assert [sequence.id for sequence in fair.begun] == [sequence.id for sequence in plain.begun]


class AccountsOnly(FairQueue):
    """Keeps accounts of one client too, at any time."""

    def add(self, sequence: Sequence) -> None:
        vars(self)["_alone"] = None
        super().add(sequence)

    def end(self, sequence: Sequence) -> None:
        super().end(sequence)
        vars(self)["_alone"] = None


# Each a client that asks, so many steps, a request that is preempted, or one that ends early.
CLIENTS = ("a", "a", "a", "b", "c/1", "c/2")
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, len(CLIENTS) - 1), st.integers(-3, 3)),
        st.tuples(st.just("step"), st.integers(1, 12), st.just(0)),
        st.tuples(st.sampled_from(["preempt", "abort"]), st.integers(0, 99), st.just(0)),
    ),
    max_size=60,
)


def begun_of(engine: Slots, acts: list[tuple[str, int, int]]) -> list[int]:
    """Ids of the requests in the order in which they began, preempted ones again."""
    for act, number, priority in acts:
        open_requests = sorted([*engine.queue, *engine.running], key=rank_of)
        if act == "ask":
            client = CLIENTS[number]
            engine.ask(client, 2 + number, 1 + (number + priority) % 7, priority)
        elif act == "step":
            for _ in range(number):
                engine.step()
        elif act == "preempt" and engine.running:
            engine.preempt(engine.queue.last_due(engine.running))
        elif act == "abort" and open_requests:
            sequence = open_requests[number % len(open_requests)]
            if sequence in engine.running:
                engine.leave(sequence)
            else:
                engine.queue.end(sequence)
    engine.until(lambda: not engine.queue and not engine.running)
    return [sequence.id for sequence in engine.begun]


@given(ACTS, st.integers(1, 3), st.sampled_from([{}, {"a": 2.0}, {"b": 0.5, "1": 4.0}]))
def test_the_order_is_that_of_accounts_though_one_client_has_none(acts, slots, weights) -> None:
    """However clients come and go, at whatever moment another comes."""
    quick, plain = Slots(slots, weights=weights), Slots(slots, weights=weights)
    plain.queue = AccountsOnly(plain.rows, weights=weights)
    vars(plain.queue)["_alone"] = None
    assert begun_of(quick, acts) == begun_of(plain, acts)


def test_one_client_has_no_accounts_until_another_comes_and_after_all_have_left() -> None:
    engine = Slots(2)

    def has_accounts() -> bool:
        return len(vars(engine.queue)["_groups"]) > 0

    for _ in range(5):
        engine.ask("a")
        engine.step()
        assert not has_accounts()
    engine.ask("b")
    assert has_accounts()
    engine.until(lambda: not engine.queue and not engine.running)
    engine.ask("b")
    assert not has_accounts()


# ---- preemption ---------------------------------------------------------------------------------


def test_a_preempted_request_returns_to_its_place_and_is_not_charged_again() -> None:
    engine = Slots(2)
    first, second = engine.ask("a", 100, 50), engine.ask("b", 100, 50)
    engine.step()
    later = [engine.ask(client, 100, 50) for client in ("a", "b", "a", "b")]
    engine.preempt(second)
    engine.step()
    assert engine.running == [first, second], "before the other requests of its client"
    engine.preempt(first)
    engine.step()
    assert set(engine.running) == {first, second}
    engine.until(lambda: not engine.queue)
    for client in "ab":
        mine = [sequence for sequence in engine.begun if sequence.client_id == client]
        assert mine[-2:] == [each for each in later if each.client_id == client]


def test_who_runs_most_makes_room_and_its_newest_request_first() -> None:
    engine = Slots(6, weights={"c": 4.0})
    asked = [engine.ask(client) for client in ("a", "a", "a", "b", "c", "c")]
    engine.step()
    order = []
    while engine.running:
        last = engine.queue.last_due(engine.running)
        order.append(asked.index(last))
        engine.leave(last)
    assert order == [2, 1, 3, 0, 5, 4]


def test_a_pool_that_is_short_takes_from_the_client_with_most_requests() -> None:
    """The scheduler's own preemption: what "b" has begun goes on."""
    scheduler = make_scheduler(num_blocks=16, block_size=4, max_num_seqs=8, max_model_len=64)
    model = FakeModel(scheduler)
    for number in range(5):
        scheduler.add(make_request(number, 8, max_tokens=40, client_id="a", ignore_eos=True))
    model.step()
    scheduler.add(make_request(9, 8, max_tokens=40, client_id="b", ignore_eos=True))
    while scheduler.stats().preemptions_total < 3:
        model.step()
        waiting = {sequence.id for sequence in scheduler.waiting}
        assert 9 not in waiting or 9 not in model.tokens
    model.run()
    assert sorted(model.finished) == [0, 1, 2, 3, 4, 9]


# ---- memory -------------------------------------------------------------------------------------


def test_what_is_remembered_of_clients_that_left_is_bounded() -> None:
    shares: FairShares[None] = FairShares({})
    patient = shares.open("patient", None)
    patient.move(waiting=1)
    most = 0
    for number in range(5 * MOST_DEPARTED):
        account = shares.open(f"client {number}", None)
        account.move(running=1)
        account.charge(10 + number % 7)  # more than its part: ahead of the virtual time
        account.move(running=-1)
        most = max(most, len(shares))
    assert most <= MOST_DEPARTED + 2
    assert shares.next() is patient


def test_nothing_is_remembered_once_nothing_is_left_to_do() -> None:
    engine = Slots(3)
    for number in range(500):
        engine.ask(f"{number % 7}/{number}", 4, 3)
    engine.until(lambda: not engine.queue and not engine.running)
    assert len(list(engine.queue)) == 0
    assert vars(engine.queue)["_num_active"] == 0
    assert len(vars(engine.queue)["_groups"]) == 0
    assert not vars(engine.queue)["_clients"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"policy": "prefill_first"},
        {"policy": "prefill_first", "delay_factor": 2.0},
        {"threshold": 3, "max_num_batched_tokens": 9},
        {"num_blocks": 20},
        {"num_speculative_tokens": 2},
        {"windows": (None, 6)},
    ],
    ids=str,
)
def test_however_steps_are_made_a_newcomer_is_next(options: dict) -> None:
    scheduler = make_scheduler(**{"max_num_seqs": 4, "num_blocks": 64, **options})
    model = FakeModel(scheduler)
    for number in range(300):
        prompt = [number % 7 + 10] * 9
        request = make_request(number, prompt, max_tokens=8, client_id="many", ignore_eos=True)
        scheduler.add(request)
    for _ in range(12):
        model.step()
    before = set(model.tokens)
    scheduler.add(make_request(1000, 5, max_tokens=2, client_id="one", arrive_time=model.clock))
    while 1000 not in model.tokens:
        model.step()
    # Those that had begun their prompts, and who took the places that were free at that moment.
    assert len(set(model.tokens) - before - {1000}) <= 2 * 4
    model.run(limit=5000)
