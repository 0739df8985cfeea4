"""A client that sends little is served at once beside one that holds all slots or blocks."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.model_engine.schedule.fair_queue import FairQueue
from atom.model_engine.schedule.row_table import RowTable
from atom.model_engine.sequence import Sequence
from atom.model_engine.step_pipeline import StepPipeline
from tests.support.engine_core.builders_engine import make_request, make_scheduler
from tests.support.engine_core.paged_model import PagedModel, drawn_token
from tests.support.engine_core.scheduler_integrity import check_integrity

MAX_MODEL_LEN = 64
# The steps that a request of one step's prompt takes to its first token when it is served at once:
# one that finds too few blocks, one for tokens that are outstanding, one for its prompt, one until
# its token is taken in, and one that prompts of others may take alone.
SERVED_AT_ONCE = 5


@dataclass
class Engine:
    """A scheduler with a model that checks each step's KV. firsts: the step of each request's first
    token."""

    options: dict[str, object]
    depth: int = 1
    asked: dict[int, tuple[int, int]] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    firsts: dict[int, int] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    steps: int = 0

    def __post_init__(self) -> None:
        options = {"max_model_len": MAX_MODEL_LEN, "max_num_batched_tokens": 64, **self.options}
        self.scheduler = make_scheduler(**options)  # type: ignore[arg-type]
        pool = self.scheduler.blocks.pool
        model = PagedModel(
            4,
            pool.num_blocks,
            scheduled_rows=self.scheduler.rows,
            num_drafts=options.get("num_speculative_tokens", 0),  # type: ignore[arg-type]
            windows=options.get("windows", (None,)),  # type: ignore[arg-type]
            max_model_len=MAX_MODEL_LEN,
        )
        self.pipeline = StepPipeline(self.scheduler, model, depth=self.depth)

    def ask(self, number: int, client: str, *, prompt: int, answer: int) -> None:
        self.asked[number] = prompt, answer
        tokens = [10 + number % 7] * prompt
        request = make_request(
            number, tokens, max_tokens=answer, arrive_time=float(self.steps), client_id=client,
            ignore_eos=True,
        )  # fmt: skip
        self.scheduler.add(request)

    def step(self) -> None:
        self.steps += 1
        result = self.pipeline.step(float(self.steps))
        check_integrity(self.scheduler)
        if result is None:
            return
        for request, run in result.runs():
            self.firsts.setdefault(request, self.steps)
            self.tokens.setdefault(request, []).extend(run)
        self.ended |= {row.request_id for row in result.finished}

    def until_first_token(self, number: int) -> int:
        """Step until the request has a token; the number of steps."""
        begun = self.steps
        while number not in self.firsts:
            assert self.steps - begun < 500, "it starved"
            self.step()
        return self.firsts[number] - begun

    def run(self, limit: int = 20_000) -> None:
        while self.pipeline.has_work():
            assert self.steps < limit, "no progress"
            self.step()
        for number, (prompt, answer) in self.asked.items():
            expected = [drawn_token(number, prompt + at) for at in range(answer)]
            assert self.tokens[number] == expected, "an answer changed"
        assert self.ended == set(self.asked)

    @property
    def preemptions(self) -> int:
        return self.scheduler.stats().preemptions_total


BOUND = {
    "slots": {"max_num_seqs": 8, "num_blocks": 400},
    "blocks": {"max_num_seqs": 32, "num_blocks": 60},
    "both": {"max_num_seqs": 6, "num_blocks": 44},
    "no cache": {"max_num_seqs": 4, "num_blocks": 50, "prefix_caching": False},
}
KINDS = {
    "mixed": {},
    "prompts first": {"policy": "prefill_first"},
    "drafts": {"num_speculative_tokens": 2},
}


@pytest.mark.sampled(8)
@pytest.mark.pairs
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bound", BOUND)
def test_a_small_client_is_served_at_once_beside_a_greedy_one(
    bound: str, kind: str, depth: int
) -> None:
    """Whichever is short; and every answer is the same as without the other client."""
    draw = random.Random(f"{bound} {kind} {depth}")
    engine = Engine({**BOUND[bound], **KINDS[kind]}, depth)
    for number in range(100):
        engine.ask(number, "greedy", prompt=draw.randint(2, 9), answer=draw.randint(30, 50))
    for number in range(1000, 1012):
        for _ in range(draw.randint(1, 25)):
            engine.step()
        engine.ask(number, "small", prompt=draw.randint(1, 6), answer=3)
        assert engine.until_first_token(number) <= SERVED_AT_ONCE
    engine.run()


@pytest.mark.parametrize("windows", [(6,), (None, 6)], ids=str)
def test_so_it_is_where_layers_see_a_window(windows: tuple[int | None, ...]) -> None:
    engine = Engine({"max_num_seqs": 6, "num_blocks": 200, "windows": windows})
    for number in range(40):
        engine.ask(number, "greedy", prompt=5, answer=50)
    for number in range(1000, 1008):
        for _ in range(9):
            engine.step()
        engine.ask(number, "small", prompt=4, answer=3)
        assert engine.until_first_token(number) <= SERVED_AT_ONCE
    engine.run()


def test_one_row_makes_way_for_one_request_of_the_other_client() -> None:
    engine = Engine({"max_num_seqs": 8, "num_blocks": 400})
    for number in range(8):
        engine.ask(number, "greedy", prompt=5, answer=50)
    for number in range(1000, 1006):
        for _ in range(3):
            engine.step()
        before = engine.preemptions
        engine.ask(number, "small", prompt=4, answer=2)
        engine.until_first_token(number)
        assert engine.preemptions - before <= 1
    engine.run()
    assert engine.preemptions <= 6


def test_the_newest_row_of_the_client_that_runs_most_makes_way() -> None:
    engine = Engine({"max_num_seqs": 6, "num_blocks": 400})
    for number, client in enumerate(["a", "b", "b", "b", "c", "c"]):
        engine.ask(number, client, prompt=4, answer=40)
    for _ in range(4):
        engine.step()
    engine.ask(9, "d", prompt=4, answer=2)
    engine.until_first_token(9)
    assert engine.preemptions == 1
    stopped = {number: len(tokens) for number, tokens in engine.tokens.items()}
    assert min(stopped, key=lambda number: stopped[number] if number < 6 else 99) == 3
    engine.run()


@pytest.mark.parametrize("clients", [["a"], ["a", "b"]], ids=len)
def test_clients_at_their_share_preempt_none(clients: list[str]) -> None:
    """One alone, and two that wait for as many slots each."""
    engine = Engine({"max_num_seqs": 6, "num_blocks": 400})
    for number in range(60):
        engine.ask(number, clients[number % len(clients)], prompt=4, answer=20)
    engine.run()
    assert engine.preemptions == 0


def test_without_fairness_nobody_makes_way() -> None:
    engine = Engine({"max_num_seqs": 4, "num_blocks": 400, "fairness": "off"})
    for number in range(4):
        engine.ask(number, "greedy", prompt=5, answer=50)
    engine.step()
    engine.ask(9, "small", prompt=4, answer=2)
    assert engine.until_first_token(9) > 40
    assert engine.preemptions == 0


def test_a_request_for_which_no_preemption_makes_enough_room_preempts_none() -> None:
    """Its prompt takes more blocks than all rows that may make way hold."""
    engine = Engine({"max_num_seqs": 8, "num_blocks": 16, "prefix_caching": False})
    for number in range(3):
        engine.ask(number, "greedy", prompt=14, answer=10)
    engine.step()
    engine.ask(9, "large", prompt=60, answer=2)
    engine.step()
    assert engine.preemptions == 0
    engine.run()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(12))
def test_clients_that_send_much_do_not_preempt_each_other_for_ever(seed: int) -> None:
    """Each admission preempts few rows, and all ends: the engine does not compute the same rows
    again and again."""
    draw = random.Random(seed)
    bound = draw.choice(list(BOUND.values()))
    engine = Engine(bound, depth=seed % 2)
    for number in range(80):
        client = draw.choice(["a", "b", "g/x", "g/y"])
        size = draw.choice([(1, 40), (20, 4), (6, 15)])
        engine.ask(number, client, prompt=size[0], answer=size[1])
        for _ in range(draw.choice([0, 0, 1, 4])):
            engine.step()
    engine.run()


# ---- the rule -----------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c", "g/x", "g/y", "g/z"])
WEIGHTS = st.dictionaries(st.sampled_from(["a", "b", "g", "x"]), st.sampled_from([0.5, 2.0, 5.0]))


def _loads(names: Iterable[str], weights: dict[str, float]) -> tuple[dict[str, float], ...]:
    """Rows by weight: of groups, and of clients."""
    groups: dict[str, float] = {}
    clients: dict[str, float] = {}
    for name in names:
        group, _, client = name.partition("/")
        groups[group] = groups.get(group, 0.0) + 1 / weights.get(group, 1.0)
        clients[name] = clients.get(name, 0.0) + 1 / weights.get(client, 1.0)
    return groups, clients


def _is_fairer(poor: str, rich: str, running: list[str], weights: dict[str, float]) -> bool:
    """Return whether `rich` runs more, by weight, than `poor` does with one row more."""
    (groups, clients), after = _loads(running, weights), _loads([*running, poor], weights)
    poor_group, rich_group = poor.partition("/")[0], rich.partition("/")[0]
    if poor_group != rich_group:
        return after[0][poor_group] < groups[rich_group]
    return after[1][poor] < clients[rich]


@given(st.lists(NAMES, min_size=1, max_size=12), st.lists(NAMES, min_size=1, max_size=6), WEIGHTS)
def test_every_row_that_makes_way_makes_the_shares_more_equal(
    running: list[str], waiting: list[str], weights: dict[str, float]
) -> None:
    rows = RowTable(len(running), MAX_MODEL_LEN)
    queue = FairQueue(rows, weights=weights)
    for number, name in enumerate(running):
        sequence = Sequence(make_request(number, client_id=name))
        queue.add(sequence)
        rows.enter(sequence)
        queue.admit(sequence, 5)
    for number, name in enumerate(waiting, start=len(running)):
        queue.add(Sequence(make_request(number, client_id=name)))
    given_up = queue.making_way()
    poor = queue.first.client_id
    left = list(running)
    for sequence in given_up:
        rich = sequence.client_id
        assert _is_fairer(poor, rich, left, weights)
        newest = max(number for number, name in enumerate(running) if name == rich)
        assert sequence.id in range(newest - len(running), newest + 1)
        left.remove(rich)
    assert [s.id for s in given_up] == sorted((s.id for s in given_up), reverse=True)
    assert len({s.client_id for s in given_up}) <= 1
    if not given_up:
        assert not any(_is_fairest(poor, rich, running, weights) for rich in set(running))


def _is_fairest(poor: str, rich: str, running: list[str], weights: dict[str, float]) -> bool:
    """Return whether `rich` is who should make way for `poor`: in another group one that runs most,
    and in its own likewise."""
    groups, clients = _loads(running, weights)
    most = max(groups.values())
    group = rich.partition("/")[0]
    same = group == poor.partition("/")[0]
    if not same and groups[group] < most:
        return False
    beside = [load for name, load in clients.items() if name.partition("/")[0] == group]
    return clients[rich] == max(beside) and _is_fairer(poor, rich, running, weights)
