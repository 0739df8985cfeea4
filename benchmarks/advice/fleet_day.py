"""A simulated day of a fleet with bursts: fixed replicas, thresholds, and predicted latencies.

    python -m benchmarks.advice.fleet_day

Requests arrive by a daily curve with bursts. A replica computes in ticks of a quarter second: its
steps take what learned costs say, prompts come first in, first out, and slots are bounded. The
signals are those that are rendered: the engine's own prediction (atom.model_engine.outlook) with
the operator's formula, or the thresholds that the plan gives. The autoscaler follows the
rendered behaviour: polls of 15 s, a tolerance of a tenth, at most twice as many a minute, one fewer
a minute after five minutes of calm. A replica takes two minutes to load. With two roles, prefill
replicas compute all prompts and follow predicted first tokens, and decode replicas answer and
follow predicted next tokens. Deterministic: the same seed gives the same day. Prints a Markdown
table; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from atom.model_engine.outlook.prediction import Ahead, Bounds, Typical, predict
from atom.model_engine.outlook.step_costs import Costs
from atom.model_engine.wire.outlook_body import Predicted
from atom_operator.children.autoscaling.latency_signal import FULL, replicas_for

# An 8B on one H200 as benchmarks/advice/h200_truth.py simulates it, and targets for it.
COSTS = Costs(step=0.0046, row=9e-5, token=2e-5)
BOUNDS = Bounds(16_384, 0.3)
ROWS, PROMPT_TOKENS, OUTPUT_TOKENS = 64, 2000, 200
TYPICAL = Typical(float(PROMPT_TOKENS), float(OUTPUT_TOKENS), 2100.0, 100.0)
_ANSWERS = replace(TYPICAL, prompt_tokens=1.0, step_tokens=0.0)  # of decode replicas
TTFT, ITL, PERCENTILE = 2.0, 0.05, 0.9
TICK, POLL, LOADING = 0.25, 15.0, 120.0
MOST_REPLICAS, PEAK_KEPT = 24, 0.98
_CALM_SECONDS, _TOLERANCE = 300.0, 0.1
_LOAD_SECONDS = 30.0


@dataclass(slots=True)
class Request:
    """A request of the day. left: prompt tokens, then tokens of its answer."""

    arrived: float
    prompt_left: float = float(PROMPT_TOKENS)
    output_left: float = float(OUTPUT_TOKENS)
    ttft: float = 0.0
    ended: float = 0.0

    @property
    def is_kept(self) -> bool:
        """Return whether the first token and, on average, the next ones came in time."""
        answering = self.ended - self.arrived - self.ttft
        return self.ttft <= TTFT and answering / OUTPUT_TOKENS <= ITL


@dataclass(slots=True)
class Replica:
    """One server: prompts in order, answers side by side."""

    ready_at: float
    waiting: deque[Request] = field(default_factory=deque)
    prompts: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    load: float = 0.0

    @property
    def open_requests(self) -> int:
        return len(self.waiting) + len(self.prompts) + len(self.running)

    def tick(self, now: float, ended: list[Request]) -> None:
        """Compute for one tick."""
        while self.waiting and len(self.prompts) + len(self.running) < ROWS:
            self.prompts.append(self.waiting.popleft())
        left = TICK
        if self.prompts:
            left -= self._compute_prompts(now, TICK)
        rows, work = len(self.running), TICK - left
        if rows:
            work += self._compute_answers(now, left, ended)
        self.load += TICK / _LOAD_SECONDS * (work / TICK - self.load)

    def _compute_answers(self, now: float, left: float, ended: list[Request]) -> float:
        """Give each answer its tokens of the tick; return the seconds that these would take in full
        steps."""
        rows = len(self.running)
        plain = COSTS.seconds(rows, 0)
        steps = max(0.0, left) / plain
        # Steps that have a chunk of a prompt give a token, too, in the time of the chunk.
        gap = TICK / max(steps, TICK / BOUNDS.step_seconds)
        tokens = TICK / gap
        for request in self.running:
            request.output_left -= tokens
            request.ended = now + TICK
        ended += [each for each in self.running if each.output_left <= 0]
        self.running = [each for each in self.running if each.output_left > 0]
        return tokens * rows * COSTS.seconds(ROWS, 0) / ROWS

    def _compute_prompts(self, now: float, seconds: float) -> float:
        """Compute prompts, beside answers in at most most of the tick; return the seconds."""
        share = seconds * (0.9 if self.running else 1.0)
        used = 0.0
        while self.prompts and used < share:
            first = self.prompts[0]
            tokens = min(first.prompt_left, (share - used) / COSTS.token)
            used += tokens * COSTS.token
            first.prompt_left -= tokens
            if first.prompt_left > 1e-6:
                break
            first.ttft = now + used + COSTS.seconds(len(self.running), 0) - first.arrived
            self.begin_answer(self.prompts.popleft())
        return used

    def begin_answer(self, request: Request) -> None:
        """Answer a request whose prompt is computed."""
        self.running.append(request)

    def taken(self) -> list[Request]:
        """Return the computed prompts that others answer, once each."""
        return []

    def ratio(self) -> float:
        """Return the worse predicted latency by its target."""
        if not self.open_requests:
            return 0.0
        found = self.expected()
        return max(found.ttft_seconds / TTFT, found.itl_seconds / ITL)

    def expected(self, typical: Typical = TYPICAL) -> Predicted:
        """Return the latencies that the engine tells."""
        pending = len(self.waiting) + len(self.prompts)
        tokens = sum(each.prompt_left for each in self.prompts)
        tokens += sum(each.prompt_left for each in self.waiting)
        ahead = Ahead(
            decodes=len(self.running),
            pending=pending,
            waiting=len(self.waiting),
            prompt_tokens=tokens,
            free_rows=ROWS - len(self.prompts) - len(self.running),
        )
        return predict(ahead, COSTS, typical, BOUNDS)


@dataclass(slots=True)
class PrefillReplica(Replica):
    """A server that computes prompts for others. computed: those that have to be sent on."""

    computed: list[Request] = field(default_factory=list)

    def begin_answer(self, request: Request) -> None:
        self.computed.append(request)

    def taken(self) -> list[Request]:
        found, self.computed = self.computed, []
        return found

    def ratio(self) -> float:
        """Return the predicted first token by its target."""
        return self.expected().ttft_seconds / TTFT if self.open_requests else 0.0


@dataclass(slots=True)
class DecodeReplica(Replica):
    """A server whose requests come with their prompts computed."""

    def ratio(self) -> float:
        """Return the predicted next token by its target."""
        return self.expected(_ANSWERS).itl_seconds / ITL if self.open_requests else 0.0


Signal = Callable[[Sequence[Replica]], float]


def by_latency(ready: Sequence[Replica]) -> float:
    """Return the replicas that predicted latencies ask for."""
    ratios = sorted(replica.ratio() for replica in ready)
    late = ratios[min(len(ratios) - 1, int(PERCENTILE * len(ratios)))]
    full = sum(replica.load for replica in ready) / FULL
    return max(replicas_for(late, len(ready)), full)


def by_thresholds(ready: Sequence[Replica]) -> float:
    """Return the replicas that the plan's thresholds ask for: running requests at four fifths of
    the slots, waiting ones at a tenth of that."""
    running = sum(len(each.running) + len(each.prompts) for each in ready)
    waiting = sum(len(each.waiting) for each in ready)
    concurrency = ROWS * 80 // 100
    return max(running / concurrency, waiting / max(1, concurrency // 10))


def rate(now: float, peak: float, bursts: Sequence[tuple[float, float, float]]) -> float:
    """Return the requests per second at a time: a daily curve, and bursts of some minutes."""
    day = 0.5 - 0.5 * math.cos(2 * math.pi * now / 86_400)
    own = peak * (0.15 + 0.85 * day**1.5)
    factors = [times for begin, end, times in bursts if begin <= now < end]
    return float(own * max(factors, default=1.0))


def bursts_of(source: random.Random, hours: float) -> list[tuple[float, float, float]]:
    """Draw a burst for each two hours: it lasts three to ten minutes, at up to twice the rate."""
    found = []
    for number in range(int(hours / 2)):
        begin = 7200.0 * number + source.uniform(0, 6000)
        found.append((begin, begin + source.uniform(180, 600), source.uniform(1.2, 2.0)))
    return found


@dataclass(frozen=True, slots=True)
class Day:
    """The result of a policy. kept: share of requests within both targets; replica_hours: of all
    replicas, loading ones included; most: at once."""

    name: str
    requests: int
    kept: float
    replica_hours: float
    most: int


@dataclass(slots=True)
class Fleet:
    """Replicas and their autoscaler; signal: None for a fixed number."""

    replicas: list[Replica]
    signal: Signal | None
    kind: type[Replica] = Replica
    wishes: deque[tuple[float, int]] = field(default_factory=deque)
    grown_at: float = -1e9
    shrunk_at: float = -1e9
    before: int = 0

    def serve(self, arrived: Sequence[Request], now: float, ended: list[Request]) -> list[Request]:
        """Give new requests to the replicas with the least work, and compute for one tick; return
        the requests that another fleet answers."""
        ready = [each for each in self.replicas if each.ready_at <= now]
        for request in arrived:
            min(ready, key=lambda each: each.open_requests).waiting.append(request)
        for replica in ready:
            replica.tick(now, ended)
        return [request for replica in ready for request in replica.taken()]

    def poll(self, now: float) -> None:
        """Ask the signal, and change the number as the autoscaler would."""
        if self.signal is None:
            return
        ready = [each for each in self.replicas if each.ready_at <= now]
        count, value = len(self.replicas), self.signal(ready)
        wanted = count
        if ready and abs(value / count - 1) > _TOLERANCE:
            wanted = min(MOST_REPLICAS, max(1, math.ceil(value - 1e-9)))
        self.wishes.append((now, wanted))
        while self.wishes[0][0] < now - _CALM_SECONDS:
            self.wishes.popleft()
        if wanted > count:
            self._grow(now, wanted)
        elif max(each for _, each in self.wishes) < count and now - self.shrunk_at >= 60:
            self.shrunk_at = now
            self._shrink()

    def _grow(self, now: float, wanted: int) -> None:
        if now - self.grown_at >= 60:
            self.grown_at, self.before = now, len(self.replicas)
        for _ in range(min(wanted, 2 * self.before) - len(self.replicas)):
            self.replicas.append(self.kind(now + LOADING))

    def _shrink(self) -> None:
        """End the replica with the least work; its requests go to the others."""
        least = min(self.replicas, key=lambda each: each.open_requests)
        self.replicas.remove(least)
        for request in (*least.waiting, *least.prompts, *least.running):
            min(self.replicas, key=lambda each: each.open_requests).waiting.append(request)


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of a day between two hours. peak: per second at noon, without bursts."""

    peak: float = 30.0
    begin: float = 0.0
    end: float = 24.0
    seed: int = 7


def simulate(name: str, signal: Signal | None, count: int, load: Load) -> Day:
    """Serve a day with a policy, from so many replicas."""
    return _served_day(name, [_begun(Replica, count, signal)], load)


def simulate_roles(name: str, signal: Signal | None, counts: tuple[int, int], load: Load) -> Day:
    """Serve a day by prefill and decode replicas, each role with its own autoscaler."""
    kinds: tuple[type[Replica], ...] = (PrefillReplica, DecodeReplica)
    fleets = [_begun(kind, count, signal) for kind, count in zip(kinds, counts, strict=True)]
    return _served_day(name, fleets, load)


def _begun(kind: type[Replica], count: int, signal: Signal | None) -> Fleet:
    return Fleet([kind(0.0) for _ in range(count)], signal, kind)


def _served_day(name: str, fleets: Sequence[Fleet], load: Load) -> Day:
    """Serve a day; each fleet sends its computed prompts to the next one."""
    source = random.Random(load.seed)
    bursts = bursts_of(random.Random(load.seed + 1), 24.0)
    ended: list[Request] = []
    now = polled = load.begin * 3600
    hours_used, most = 0.0, sum(len(fleet.replicas) for fleet in fleets)
    while now < load.end * 3600:
        arrivals = _poisson(source, rate(now, load.peak, bursts) * TICK)
        arrived = [Request(now) for _ in range(arrivals)]
        for fleet in fleets:
            arrived = fleet.serve(arrived, now, ended)
        if now >= polled:
            polled += POLL
            for fleet in fleets:
                fleet.poll(now)
        count = sum(len(fleet.replicas) for fleet in fleets)
        hours_used, most = hours_used + count * TICK / 3600, max(most, count)
        now += TICK
    late = sum(each.open_requests for fleet in fleets for each in fleet.replicas)
    kept = sum(each.is_kept for each in ended)
    return Day(name, len(ended), kept / max(1, len(ended) + late), hours_used, most)


def _poisson(source: random.Random, mean: float) -> int:
    limit, count, product = math.exp(-mean), 0, source.random()
    while product > limit:
        count, product = count + 1, product * source.random()
    return count


def replicas_of_the_peak(load: Load) -> int:
    """Return the fewest fixed replicas that keep the targets in the busiest hours, bursts included:
    a site that buys for the peak buys these."""
    busiest = replace(load, begin=10.0, end=14.0)
    low, high = 0, MOST_REPLICAS
    while high - low > 1:
        middle = (low + high) // 2
        kept = simulate("fixed", None, middle, busiest).kept
        low, high = (low, middle) if kept >= PEAK_KEPT else (middle, high)
    return high


def roles_of_the_peak(load: Load) -> tuple[int, int]:
    """Return the fewest fixed decode replicas, and with these the fewest prefill replicas, that
    keep the targets in the busiest hours."""
    busiest = replace(load, begin=10.0, end=14.0)

    def keeps(counts: tuple[int, int]) -> bool:
        return simulate_roles("fixed", None, counts, busiest).kept >= PEAK_KEPT

    numbers = range(1, MOST_REPLICAS)
    decodes = next((each for each in numbers if keeps((MOST_REPLICAS, each))), MOST_REPLICAS)
    return next((each for each in numbers if keeps((each, decodes))), MOST_REPLICAS), decodes


def compare_roles(load: Load) -> list[Day]:
    """Return the day of two roles: fixed, and each by its own predicted latency."""
    prefills, decodes = roles_of_the_peak(load)
    begin = max(1, prefills // 4), max(1, decodes // 4)
    return [
        simulate_roles("two roles, fixed for the peak", None, (prefills, decodes), load),
        simulate_roles("two roles, predicted latencies", by_latency, begin, load),
    ]


def compare(load: Load) -> list[Day]:
    """Return the day of each policy: fixed, thresholds, predicted latencies."""
    peak = replicas_of_the_peak(load)
    begin = max(1, peak // 4)
    return [
        simulate("fixed, for the peak", None, peak, load),
        simulate("thresholds of the plan", by_thresholds, begin, load),
        simulate("predicted latencies", by_latency, begin, load),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="A day of a simulated fleet, by policy.")
    parser.add_argument("--peak", type=float, default=30.0, help="requests per second at noon")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--roles", action="store_true", help="prefill and decode apart")
    args = parser.parse_args()
    load = Load(peak=args.peak, seed=args.seed)
    days = compare_roles(load) if args.roles else compare(load)
    print("| replicas by | requests | within targets | replica hours | of the peak's | most |")
    print("|---|---:|---:|---:|---:|---:|")
    for day in days:
        share = day.replica_hours / days[0].replica_hours
        print(f"| {day.name} | {day.requests:,} | {day.kept:.1%} | {day.replica_hours:,.0f} "
              f"| {share:.0%} | {day.most} |")  # fmt: skip
    found = {day.name: [round(day.kept, 4), round(day.replica_hours, 1)] for day in days}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
