"""Schedules of arrivals, aborts, drains and kills for ranks that share experts, from a seed.

A schedule is played on a LockstepWorld: who goes on next is drawn too. What must hold at every end
is checked here; a group whose rank was killed is made anew, and answers what was left open.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from atom.config import Config
from atom.model_engine.request import Request
from atom.model_engine.wire.engine_protocol import AbortBody, AddBody, ShutdownBody
from tests.support.engine_core.builders_engine import make_request
from tests.support.ranks.lockstep_runner import token_of
from tests.support.ranks.lockstep_world import LockstepWorld

MAX_TOKENS = 12
_LAST_ARRIVAL = 500  # turns of all ranks together
_LAST_END = 900


class End(Enum):
    """How a group ends. DRAINED: nothing new comes, and it is told to end when nothing is open;
    STOPPED: it is told to while it works; KILLED: one of its processes is."""

    DRAINED = "drained"
    STOPPED = "stopped"
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class Arrival:
    """turn: at which the request comes to its rank; abort_turn: at which it is given up."""

    request: Request
    rank: int
    turn: int
    abort_turn: int | None


@dataclass(frozen=True, slots=True)
class Schedule:
    """victim: the rank whose process is killed."""

    arrivals: tuple[Arrival, ...]
    end: End
    end_turn: int
    victim: int


@dataclass(slots=True)
class Tally:
    """What schedules came to, added up."""

    ends: dict[End, int] = field(default_factory=dict)
    answers: int = 0
    aborts: int = 0
    errors: int = 0  # requests that were open when their group ended


def draw_schedule(draw: random.Random, ranks: int) -> Schedule:
    """Bursts for some ranks, nothing for others; a rank may take nothing any more from some turn
    on, while it serves the others."""
    closed = [draw.choice((0, _LAST_ARRIVAL, draw.randint(0, _LAST_ARRIVAL))) for _ in range(ranks)]
    arrivals = []
    for number in range(draw.choice((1, 4, 10, 20))):
        turn = draw.choice((0, draw.randint(0, _LAST_ARRIVAL)))
        open_ranks = [rank for rank in range(ranks) if turn <= closed[rank]] or [0]
        prompt = [10 + draw.randint(0, 1)] * draw.randint(1, 12) + [50] * draw.randint(0, 6)
        request = make_request(
            number, prompt, max_tokens=draw.randint(1, MAX_TOKENS), temperature=0.0, ignore_eos=True
        )
        gives_up = turn + draw.randint(0, 300) if draw.random() < 0.2 else None
        arrivals.append(Arrival(request, draw.choice(open_ranks), turn, gives_up))
    end = draw.choice((End.DRAINED, End.STOPPED, End.KILLED, End.KILLED))
    return Schedule(tuple(arrivals), end, draw.randint(0, _LAST_END), draw.randrange(ranks))


class Director:
    """Plays one schedule on one group."""

    def __init__(self, config: Config, schedule: Schedule, draw: random.Random) -> None:
        self._draw, self._schedule = draw, schedule
        self._world = LockstepWorld(config, draw)
        self._turn = 0
        self._numbers = itertools.count()
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._seen: set[int] = set()  # ends that the other ranks see
        self._sent: set[int] = set()
        for arrival in schedule.arrivals:
            self._at(arrival.turn, lambda arrival=arrival: self._arrive(arrival))
            if arrival.abort_turn is not None:
                self._at(arrival.abort_turn, lambda arrival=arrival: self._abort(arrival))
        if schedule.end is End.STOPPED:
            self._at(schedule.end_turn, self._stop)
        if schedule.end is End.KILLED:
            self._at(schedule.end_turn, self._kill)

    def play(self, tally: Tally) -> list[Arrival]:
        """To the end; the arrivals that got an error, or never came."""
        world, schedule = self._world, self._schedule
        while world.turns.playing:
            self._call_due()
            if world.turns.go_on():
                self._turn += 1
                self._see_ends()
            elif world.turns.playing and self._due:
                self._turn = min(turn for turn, _, _ in self._due)
            elif schedule.end is End.DRAINED and len(world.finished) == len(schedule.arrivals):
                self._stop()
            elif world.turns.playing:
                raise AssertionError(f"a hang: {world.turns.waits()}")
        self._check_ends()
        return self._check_answers(tally)

    # ---- what happens -------------------------------------------------------------------------

    def _at(self, turn: int, call: Callable[[], None]) -> None:
        self._due.append((turn, next(self._numbers), call))

    def _soon(self, call: Callable[[], None]) -> None:
        self._at(self._turn + self._draw.choice((0, 1, self._draw.randint(0, 200))), call)

    def _call_due(self) -> None:
        due = sorted(item for item in self._due if item[0] <= self._turn)
        self._due = [item for item in self._due if item[0] > self._turn]
        for _, _, call in due:
            call()

    def _arrive(self, arrival: Arrival) -> None:
        self._sent.add(arrival.request.id)
        self._world.wires[arrival.rank].inbox.append(AddBody(requests=[arrival.request]))

    def _abort(self, arrival: Arrival) -> None:
        self._world.wires[arrival.rank].inbox.append(AbortBody(request_ids=[arrival.request.id]))

    def _see_ends(self) -> None:
        """Ends in order are seen as those of processes that are killed are, at once or later."""
        for gone in self._world.ended.keys() - self._seen:
            self._seen.add(gone)
            for rank in self._world.living:
                watch = self._world.watches[rank]
                self._soon(lambda watch=watch, gone=gone: watch.judge(gone))

    def _stop(self) -> None:
        """The manager tells all, and they hear of it one after the other."""
        self._due.clear()
        for wire in self._world.wires:
            self._soon(lambda wire=wire: wire.inbox.append(ShutdownBody()))

    def _kill(self) -> None:
        """A process of the group is gone, wherever it stood."""
        self._due.clear()
        self._world.end(self._schedule.victim)
        self._see_ends()
        self._seen.update(range(self._world.size))  # a watch sees the first end alone

    # ---- what must hold -----------------------------------------------------------------------

    def _check_ends(self) -> None:
        world, schedule = self._world, self._schedule
        reasons = {rank: reason for rank, reason in world.ended.items() if reason is not None}
        if schedule.end is not End.KILLED:
            assert reasons == {}, "an end in order was told as a failure"
            for core in world.cores:
                core.check_blocks()
            return
        others = set(range(world.size)) - {schedule.victim}
        said = f"rank {schedule.victim} of the data-parallel group is gone"
        assert reasons == dict.fromkeys(others, said)

    def _check_answers(self, tally: Tally) -> list[Arrival]:
        world, left = self._world, []
        tally.ends[self._schedule.end] = tally.ends.get(self._schedule.end, 0) + 1
        for arrival in self._schedule.arrivals:
            request = arrival.request
            tokens, row = world.tokens[request.id], world.finished.get(request.id)
            first = len(request.prompt_token_ids)
            length = request.max_total_tokens - first
            expected = [token_of(world.size, request.id, first + n) for n in range(length)]
            if row is None or row.reason == "abort":
                assert tokens == expected[: len(tokens)]
            else:
                assert tokens == expected
                tally.answers += 1
            if row is None:
                tally.errors += request.id in self._sent
                left.append(arrival)
            elif row.reason == "abort":
                tally.aborts += 1
        return left


def play(configs: dict[int, Config], seed: int, tally: Tally) -> None:
    """One schedule; and if a rank is killed in it, the group that is made anew and asked again."""
    draw = random.Random(seed)
    ranks = draw.choice(tuple(configs))
    schedule = draw_schedule(draw, ranks)
    left = Director(configs[ranks], schedule, draw).play(tally)
    assert schedule.end is not End.DRAINED or not left, "a drained group left a request open"
    if schedule.end is End.KILLED:
        again = tuple(dataclasses.replace(arrival, turn=0, abort_turn=None) for arrival in left)
        second = dataclasses.replace(schedule, arrivals=again, end=End.DRAINED)
        assert not Director(configs[ranks], second, draw).play(tally)
