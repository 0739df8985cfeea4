"""Serve a load to an engine in this process, and note each token: what the simulation predicts.

Requests arrive at the load's own times, however far behind the engine is. The engine is the served
one (scheduler, pipeline, runner) without HTTP, so a prediction of it adds no seconds of a server.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from atom.advisor.simulation import Outcome, Served
from atom.model_engine.schedule.step_result import StepResult
from atom.sampling_params import SamplingParams
from benchmarks.advice.loads import EqualLoad
from benchmarks.engines.offline_engine import OfflineEngine

_LONGEST_SLEEP = 0.0005  # the clock decides when a request arrives


@dataclass(slots=True)
class Tokens:
    """The seconds of each request's arrival, entry into the engine and tokens, by place, from
    `begun`; ended: places of requests that were served."""

    begun: float
    arrived: list[float]
    entered: list[float]
    times: list[list[float]]
    ended: set[int] = field(default_factory=set)


def serve(engine: OfflineEngine, load: EqualLoad, most_seconds: float) -> Outcome:
    """Serve a load. Requests that have not ended `most_seconds` after the first arrival are aborted
    and count as not served."""
    return serve_noted(engine, load, most_seconds)[0]


def serve_noted(
    engine: OfflineEngine, load: EqualLoad, most_seconds: float
) -> tuple[Outcome, Tokens]:
    """Serve a load as `serve` does, and return the times of all tokens with the outcome."""
    draw = np.random.default_rng(11)
    prompts = [engine.random_prompt(load.input_tokens, draw) for _ in load.dues]
    params = SamplingParams(temperature=0.0, max_tokens=load.outputs, ignore_eos=True)
    places: dict[int, int] = {}
    preempted = engine.scheduler.stats().preemptions_total
    begun, after = time.monotonic(), 0
    arrived = [due.at_seconds for due in load.dues]
    tokens = Tokens(begun, arrived, [0.0] * len(arrived), [[] for _ in arrived])
    steps_before = engine.scheduler.stats().steps_total
    while after < len(prompts) or engine.has_work():
        now = time.monotonic() - begun
        while after < len(prompts) and load.dues[after].at_seconds <= now:
            places[engine.add(prompts[after], params)] = after
            tokens.entered[after] = now
            after += 1
        if now > most_seconds:
            engine.pipeline.abort(list(places))
            break
        if engine.has_work():
            _note(engine.step(), time.monotonic() - begun, places, tokens)
        else:
            time.sleep(min(_LONGEST_SLEEP, max(0.0, load.dues[after].at_seconds - now)))
    engine.run()
    stats = engine.scheduler.stats()
    steps = stats.steps_total - steps_before
    return _outcome(tokens, load, steps, stats.preemptions_total - preempted), tokens


def _note(result: StepResult | None, now: float, places: dict[int, int], tokens: Tokens) -> None:
    if result is None:
        return
    for number, ids in result.runs():
        tokens.times[places[number]] += [now] * len(ids)
    tokens.ended |= {places[row.request_id] for row in result.finished}


def _outcome(tokens: Tokens, load: EqualLoad, steps: int, preemptions: int) -> Outcome:
    gaps = [np.diff(times) for times in tokens.times]
    last = max((times[-1] for times in tokens.times if times), default=0.0)
    return Outcome(
        served=tuple(_served(tokens, place, load) for place in range(len(load.dues))),
        longest_gaps=np.array([each.max(initial=0.0) for each in gaps]),
        gap_seconds=_joined(gaps),
        seconds=last,
        steps=steps,
        busy_seconds=last,
        kv_use=(0.0, 0.0),
        preemptions=preemptions,
        engines=1,
    )


def _served(tokens: Tokens, place: int, load: EqualLoad) -> Served | None:
    if place not in tokens.ended:
        return None
    times, arrived = tokens.times[place], tokens.arrived[place]
    return Served(arrived, times[0] - arrived, times[-1], load.outputs, 0)


def _joined(parts: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate(parts) if parts else np.zeros(0)
