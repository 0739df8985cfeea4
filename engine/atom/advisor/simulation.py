"""Simulate engines under a load: the engine's own scheduler and step pipeline, on a virtual clock.

Each engine has its own clock and moves from step to step; the one whose clock is earliest goes
next. The router of data-parallel ranks chooses the engine of a request.
Chunks, preemptions, prefix hits and waiting are therefore those of a served engine; only the
seconds of a step are predicted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from atom.advisor.engine_form import EngineForm
from atom.advisor.virtual_executor import StepSeconds, VirtualClock, VirtualExecutor
from atom.model_engine.request import Request
from atom.model_engine.step_pipeline import StepPipeline
from atom.model_engine.wire.request_router import RequestRouter
from atom.sampling_params import SamplingParams
from atom.sizing.options.parallelism import RoutingPolicy


@dataclass(frozen=True, slots=True)
class Due:
    """The arrival of a request: not before at_seconds, and delay_seconds after the last answer of
    `after`, which are places of earlier requests."""

    at_seconds: float = 0.0
    after: tuple[int, ...] = ()
    delay_seconds: float = 0.0


class Load(Protocol):
    """The requests of a simulation, by place. Prompts are made when they arrive, since all of a
    long trace together would not fit into memory."""

    @property
    def dues(self) -> Sequence[Due]: ...

    def prompt(self, place: int) -> list[int]: ...

    def output_tokens(self, place: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Server:
    """Seconds that a server takes beside its engine: of each request before its first step, and of
    each token until its client has it."""

    request_seconds: float = 0.0
    token_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Served:
    """The times of one request, in seconds. ttft: from its arrival to its first token; last: of its
    last token, from the start of the simulation; cached: prompt tokens that the prefix cache
    had."""

    arrived: float
    ttft: float
    last: float
    output_tokens: int
    cached: int

    @property
    def tpot(self) -> float:
        """Return the mean seconds between two tokens; 0 with one token."""
        after_first = self.last - self.arrived - self.ttft
        return after_first / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a simulation. served: by place, None for a request that did not end; gaps: of
    each request, the longest seconds between two tokens; gap_seconds: of all tokens together;
    kv_use: the share of blocks held, on average over the busy time, and the most; steps and
    busy_seconds: of all engines."""

    served: tuple[Served | None, ...]
    longest_gaps: NDArray[np.float64]
    gap_seconds: NDArray[np.float64]
    seconds: float
    steps: int
    busy_seconds: float
    kv_use: tuple[float, float]
    preemptions: int
    engines: int
    stopped_early: bool = False


class Engine:
    """Run one engine: the real pipeline over a device that only takes time."""

    def __init__(self, form: EngineForm, step_seconds: StepSeconds) -> None:
        self.clock = VirtualClock()
        self.executor = VirtualExecutor(step_seconds, self.clock)
        self.scheduler = form.scheduler()
        self._pipeline = StepPipeline(self.scheduler, self.executor, depth=form.depth)
        self._kv_seconds = self._kv_most = 0.0

    @property
    def has_work(self) -> bool:
        return self._pipeline.has_work()

    def add(self, request: Request, now: float) -> None:
        self.clock.advance_to(now)
        self._pipeline.add(request)

    def turn(self) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
        """Run one step; return the requests that got tokens, one entry a token, and those that
        ended with their cached tokens."""
        before = self.clock.now
        result = self._pipeline.step(before)
        pool = self.scheduler.blocks.pool
        held = pool.num_referenced / pool.num_blocks
        self._kv_most = max(self._kv_most, held)
        self._kv_seconds += held * (self.clock.now - before)
        if result is None:
            return np.zeros(0, dtype=np.int64), []
        ids = result.request_ids
        tokens = ids if result.counts is None else np.repeat(ids, result.counts)
        return tokens, [(row.request_id, row.num_cached_tokens) for row in result.finished]

    @property
    def kv_seconds(self) -> float:
        """Return the share of held blocks times seconds, summed over its steps."""
        return self._kv_seconds

    @property
    def kv_most(self) -> float:
        return self._kv_most


@dataclass(slots=True)
class _Records:
    """Tokens as they come: the time of each step and its requests, and the ends. unanswered:
    requests without a token."""

    times: list[float] = field(default_factory=list)
    requests: list[NDArray[np.int64]] = field(default_factory=list)
    arrived: dict[int, float] = field(default_factory=dict)
    unanswered: set[int] = field(default_factory=set)
    first: dict[int, float] = field(default_factory=dict)
    last: dict[int, float] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)


# Asked after each request that ends, with its place and TTFT: whether the outcome is decided.
Decided = Callable[[int, Served], bool]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Equal engines behind one address. routing: which engine serves a request."""

    form: EngineForm
    step_seconds: StepSeconds
    engines: int = 1
    server: Server = Server()
    routing: RoutingPolicy = "least_tokens"


def simulate(fleet: Fleet, load: Load, decided: Decided | None = None) -> Outcome:
    """Serve a load, from the first arrival to the last token. decided: ends the simulation early,
    whose requests under way then count as not served."""
    return _Simulation(fleet, load).run(decided)


class _Simulation:
    def __init__(self, fleet: Fleet, load: Load) -> None:
        self._load = load
        self._server = fleet.server
        self._engines = [Engine(fleet.form, fleet.step_seconds) for _ in range(fleet.engines)]
        self._router = RequestRouter(fleet.engines, fleet.routing)
        self._records = _Records()
        self._due: list[tuple[float, int]] = []
        self._awaited = [len(set(due.after)) for due in load.dues]
        self._waiters: dict[int, list[int]] = {}
        for place, due in enumerate(load.dues):
            for earlier in set(due.after):
                self._waiters.setdefault(earlier, []).append(place)
            if not due.after:
                heapq.heappush(self._due, (due.at_seconds, place))

    def run(self, decided: Decided | None) -> Outcome:
        stopped = False
        while not stopped:
            engine = self._next_engine()
            if self._due and (engine is None or self._due[0][0] <= engine.clock.now):
                self._arrive(*heapq.heappop(self._due))
            elif engine is not None:
                ended = self._turn(engine)
                stopped = decided is not None and any(
                    decided(place, served)
                    for place in ended
                    if (served := self._served(place)) is not None
                )
            else:
                break
        return self._outcome(stopped)

    def _next_engine(self) -> Engine | None:
        busy = [engine for engine in self._engines if engine.has_work]
        return min(busy, key=lambda engine: engine.clock.now, default=None)

    def _arrive(self, at: float, place: int) -> None:
        prompt, outputs = self._load.prompt(place), self._load.output_tokens(place)
        request = Request(
            id=place,
            prompt_token_ids=prompt,
            params=SamplingParams(max_tokens=outputs, ignore_eos=True),
            max_total_tokens=len(prompt) + outputs,
            arrive_time=at,
        )
        self._records.arrived[place] = at
        self._records.unanswered.add(place)
        self._engines[self._router.place(request)].add(request, at)

    def _turn(self, engine: Engine) -> list[int]:
        requests, ended = engine.turn()
        now, records = engine.clock.now, self._records
        if len(requests):
            records.times.append(now)
            records.requests.append(requests)
            if records.unanswered:
                for place in records.unanswered.intersection(requests.tolist()):
                    records.first[place] = now
                    records.unanswered.remove(place)
        for place, cached in ended:
            records.last[place], records.cached[place] = now, cached
            self._router.release(place)
            for waiter in self._waiters.get(place, ()):
                self._awaited[waiter] -= 1
                if not self._awaited[waiter]:
                    due = self._load.dues[waiter]
                    at = max(due.at_seconds, now + due.delay_seconds)
                    heapq.heappush(self._due, (at, waiter))
        return [place for place, _ in ended]

    def _served(self, place: int) -> Served | None:
        records, server = self._records, self._server
        if place not in records.last:
            return None
        arrived = records.arrived[place]
        return Served(
            arrived,
            records.first[place] - arrived + server.request_seconds + server.token_seconds,
            records.last[place] + server.request_seconds + server.token_seconds,
            self._load.output_tokens(place),
            records.cached[place],
        )

    def _outcome(self, stopped: bool) -> Outcome:
        gaps, owners = self._gaps()
        count = len(self._load.dues)
        longest = np.zeros(count)
        np.maximum.at(longest, owners, gaps)
        busy = sum(engine.executor.busy_seconds for engine in self._engines)
        held = sum(engine.kv_seconds for engine in self._engines)
        return Outcome(
            served=tuple(self._served(place) for place in range(count)),
            longest_gaps=longest,
            gap_seconds=gaps,
            seconds=max(engine.clock.now for engine in self._engines),
            steps=sum(engine.executor.steps for engine in self._engines),
            busy_seconds=busy,
            kv_use=(held / busy if busy else 0.0, max(engine.kv_most for engine in self._engines)),
            preemptions=sum(engine.scheduler.stats().preemptions_total for engine in self._engines),
            engines=len(self._engines),
            stopped_early=stopped,
        )

    def _gaps(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the seconds between two tokens of a request, and whose they are."""
        records = self._records
        if not records.times:
            return np.zeros(0), np.zeros(0, dtype=np.int64)
        counts = [len(each) for each in records.requests]
        owners = np.concatenate(records.requests)
        times = np.repeat(np.array(records.times), counts)
        order = np.lexsort((times, owners))
        owners, times = owners[order], times[order]
        same = owners[1:] == owners[:-1]
        return np.diff(times)[same], owners[1:][same]
