"""Simulate engines under a load: the engine's own scheduler and step pipeline, on a virtual clock.

Each engine has its own clock and moves from step to step; the one whose clock is earliest goes
next. The router of data-parallel ranks chooses the engine of a request. With a pair, the first
engines compute prompts, whose pages then travel to the others.
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
from atom.advisor.launches import NO_LAUNCHES, Launches
from atom.advisor.pair import Inbox, Pair, Sending
from atom.advisor.virtual.engine import NEVER, VirtualEngine
from atom.advisor.virtual.executor import StepSeconds
from atom.model_engine.request import Request
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
    each token until its client has it; accept_seconds: of the first, in which it takes no other
    request."""

    request_seconds: float = 0.0
    token_seconds: float = 0.0
    accept_seconds: float = 0.0

    @property
    def later_seconds(self) -> float:
        """Return the seconds of a request beside those in which it is accepted."""
        return max(0.0, self.request_seconds - self.accept_seconds) + self.token_seconds


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
class Moved:
    """KV pages that came from elsewhere. tier_tokens: of prompts, found in a host's tier, and
    file_tokens: in files behind it; sent: prompts whose pages another engine computed."""

    tier_tokens: int = 0
    sent: int = 0
    file_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a simulation. served: by place, None for a request that did not end; gaps: of
    each request, the longest seconds between two tokens; gap_seconds: of all tokens together;
    kv_use: the share of blocks held, on average over the busy time, and the most; steps and
    busy_seconds: of all engines; moved: pages from elsewhere."""

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
    moved: Moved = Moved()


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
    """Equal engines behind one address. routing: which engine serves a request; launches: of each
    engine's host, by default none; pair: of prefill and decode apart; host_bytes_per_second: of the
    copies of a tier; disk_bytes_per_second: of files behind it."""

    form: EngineForm
    step_seconds: StepSeconds
    engines: int = 1
    server: Server = Server()
    routing: RoutingPolicy = "least_tokens"
    launches: Launches = NO_LAUNCHES
    pair: Pair | None = None
    host_bytes_per_second: float = NEVER
    disk_bytes_per_second: float = NEVER


def simulate(fleet: Fleet, load: Load, decided: Decided | None = None) -> Outcome:
    """Serve a load, from the first arrival to the last token. decided: ends the simulation early,
    whose requests under way then count as not served."""
    return _Simulation(fleet, load).run(decided)


class _Simulation:
    def __init__(self, fleet: Fleet, load: Load) -> None:
        self._load = load
        self._server = fleet.server
        form = fleet.form
        rates = fleet.host_bytes_per_second, fleet.disk_bytes_per_second
        self._engines = [
            VirtualEngine(form, fleet.step_seconds, fleet.launches, *rates)
            for _ in range(fleet.engines)
        ]
        self._form, self._drafts = form, form.drafts is not None
        self._pair = fleet.pair
        prefills = 0 if fleet.pair is None else fleet.pair.prefills
        self._prefills, self._answering = self._engines[:prefills], self._engines[prefills:]
        self._router = RequestRouter(len(self._answering), fleet.routing)
        self._prompt_router = RequestRouter(max(1, prefills), "least_tokens")
        self._inboxes: dict[VirtualEngine, Inbox] = {}
        if fleet.pair is not None:
            self._inboxes = {
                each: Inbox(each, fleet.pair, form.page_bytes) for each in self._answering
            }
        self._links: dict[VirtualEngine, float] = {}  # when each producer's is free
        self._legs: dict[int, tuple[Request, Inbox]] = {}  # requests whose prompt is computed
        self._sendings: list[tuple[float, int, Sending, Inbox]] = []
        self._sent = 0
        self._records = _Records()
        self._accepts_at: dict[VirtualEngine, float] = {}  # when its server takes the next one
        self._accepting: dict[int, tuple[Request, VirtualEngine]] = {}
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
            engine = min(self._engines, key=lambda each: each.next_turn)
            turn_at = engine.next_turn
            arrival = self._due[0][0] if self._due else NEVER
            page = self._sendings[0][0] if self._sendings else NEVER
            if min(arrival, page, turn_at) == NEVER:
                break
            if page <= min(arrival, turn_at):
                at, _, sending, inbox = heapq.heappop(self._sendings)
                inbox.arrived(sending, at)
                self._begin_sending(inbox, at)
            elif arrival <= turn_at:
                self._arrive(*heapq.heappop(self._due))
            else:
                ended = self._turn(engine)
                stopped = decided is not None and any(
                    decided(place, served)
                    for place in ended
                    if (served := self._served(place)) is not None
                )
        return self._outcome(stopped)

    def _arrive(self, at: float, place: int) -> None:
        """Accept a request, which then is due again, or give it to its engine."""
        accepted = self._accepting.pop(place, None)
        if accepted is not None:
            self._enter(*accepted, at)
            return
        prompt, outputs = self._load.prompt(place), self._load.output_tokens(place)
        request = self._request(place, prompt, outputs, at)
        self._records.arrived[place] = at
        self._records.unanswered.add(place)
        chosen = self._answering[self._router.place(request)]
        if not self._server.accept_seconds:
            self._enter(request, chosen, at)
            return
        ends_at = max(at, self._accepts_at.get(chosen, 0.0)) + self._server.accept_seconds
        self._accepts_at[chosen], self._accepting[place] = ends_at, (request, chosen)
        heapq.heappush(self._due, (ends_at, place))

    def _enter(self, request: Request, chosen: VirtualEngine, at: float) -> None:
        """Give a request to its engine, or its prompt to one that computes prompts."""
        prompt = request.prompt_token_ids
        if self._pair is None or len(prompt) < self._pair.least_tokens:
            chosen.add(request, at)
            return
        self._legs[request.id] = request, self._inboxes[chosen]
        # Its token is thrown away.
        leg = self._request(request.id, prompt, 1, at)
        self._prefills[self._prompt_router.place(leg)].add(leg, at)

    def _request(self, place: int, prompt: list[int], outputs: int, at: float) -> Request:
        adapters, pictures, vision = (
            self._form.adapters,
            self._form.pictures,
            self._form.facts.vision,
        )
        images = []
        if pictures is not None and vision is not None:
            longest = self._form.limits.max_model_len
            images = pictures.of_request(place, len(prompt), vision, longest)
        return Request(
            id=place,
            prompt_token_ids=prompt,
            params=SamplingParams(max_tokens=outputs, ignore_eos=True),
            max_total_tokens=len(prompt) + outputs,
            arrive_time=at,
            lora=None if adapters is None else adapters.of_request(place),
            images=images,
        )

    def _turn(self, engine: VirtualEngine) -> list[int]:
        requests, ended = engine.turn()
        now, records, own_inbox = engine.clock.now, self._records, self._inboxes.get(engine)
        if self._pair is not None and own_inbox is None:
            for place, _ in ended:
                self._prompt_router.release(place)
                request, inbox = self._legs.pop(place)
                inbox.expect(request, engine)
                self._begin_sending(inbox, now)
            return []
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
        if own_inbox is not None:
            own_inbox.admitted()
            if engine.is_blocked and own_inbox.make_room():
                engine.unblock(now)
            self._begin_sending(own_inbox, now)
        return [place for place, _ in ended]

    def _begin_sending(self, inbox: Inbox, now: float) -> None:
        """Begin to send the prompts that the inbox has room for."""
        for at, sending in inbox.begin(now, self._links):
            self._sent += 1
            heapq.heappush(self._sendings, (at, self._sent, sending, inbox))

    def _served(self, place: int) -> Served | None:
        records, later = self._records, self._server.later_seconds
        if place not in records.last:
            return None
        arrived = records.arrived[place]
        return Served(
            arrived,
            records.first[place] - arrived + later,
            records.last[place] + later,
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
            moved=Moved(
                sum(engine.tier_tokens for engine in self._engines),
                self._sent,
                sum(engine.file_tokens for engine in self._engines),
            ),
        )

    def _gaps(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the seconds between two tokens of a request, and whose they are. Accepted drafts
        arrive with their token, as one piece."""
        records = self._records
        if not records.times:
            return np.zeros(0), np.zeros(0, dtype=np.int64)
        counts = [len(each) for each in records.requests]
        owners = np.concatenate(records.requests)
        times = np.repeat(np.array(records.times), counts)
        order = np.lexsort((times, owners))
        owners, times = owners[order], times[order]
        gaps, same = np.diff(times), owners[1:] == owners[:-1]
        if self._drafts:
            same &= gaps > 0.0
        return gaps[same], owners[1:][same]
