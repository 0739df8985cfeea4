"""Steps of an engine in this process with their shapes and seconds, whatever it is given to do.

A step begins when it is submitted, or when the step before it ends, if that is later: the device
computes one at a time. Prompts are random, answers have their full length.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from atom.advisor.step_shape import StepShape
from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput, TokenMask
from atom.model_engine.executor.base import StepExecutor
from atom.model_engine.step_pipeline import StepPipeline
from atom.sampling_params import SamplingParams
from benchmarks.engines.offline_engine import OfflineEngine

_WARM_UP, _STEPS, _ROUNDS = 4, 12, 3
_MOST_ANSWER = 128


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A step, and how long it took in seconds; host_seconds: of these, until it was submitted;
    device_seconds: on a GPU, until the end from its submission or from the end of the step before;
    begun: when the host began to submit it."""

    shape: StepShape
    seconds: float
    host_seconds: float = 0.0
    device_seconds: float = 0.0
    begun: float = 0.0


@dataclass(frozen=True, slots=True)
class _Begun:
    """A step under way, with its events on the device; None without one."""

    shape: StepShape
    at: float
    host_seconds: float
    events: tuple[torch.cuda.Event, torch.cuda.Event] | None


class Recorder:
    """An executor that notes the shape and the seconds of every step it passes on."""

    def __init__(self, executor: StepExecutor, on_device: bool = False) -> None:
        """on_device: whether the steps run on this process's GPU."""
        self._executor, self._on_device = executor, on_device
        self._begun: dict[int, _Begun] = {}
        self._last_end = 0.0
        self.samples: list[Sample] = []

    def submit(self, batch: ScheduledBatch) -> int:
        shape, events = StepShape.of(batch), _events() if self._on_device else None
        begun = time.perf_counter()
        if events is not None:
            events[0].record()
        ticket = self._executor.submit(batch)
        if events is not None:
            events[1].record()
        self._begun[ticket] = _Begun(shape, begun, time.perf_counter() - begun, events)
        return ticket

    def sample(self, ticket: int, mask: TokenMask | None = None) -> None:
        self._executor.sample(ticket, mask)

    def collect(self, ticket: int) -> ScheduledBatchOutput:
        output = self._executor.collect(ticket)
        step = self._begun.pop(ticket)
        ended, on_device = time.perf_counter(), 0.0
        if step.events is not None:
            step.events[1].synchronize()
            on_device = 1e-3 * step.events[0].elapsed_time(step.events[1])
        seconds = ended - max(step.at, self._last_end)
        self.samples.append(Sample(step.shape, seconds, step.host_seconds, on_device, step.at))
        self._last_end = ended
        return output


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    return begun, ended


class RecordedEngine:
    """An engine whose steps are noted. depth: steps that the host is behind."""

    def __init__(self, engine: OfflineEngine) -> None:
        self.engine = engine
        one_rank = engine.config.parallel.tensor_parallel_size == 1
        self._recorder = Recorder(engine.executor, one_rank and not engine.report.on_cpu)
        engine.pipeline = StepPipeline(
            engine.scheduler, self._recorder, depth=engine.executor.steps_behind
        )
        self._draw = np.random.default_rng(5)

    @property
    def steps(self) -> list[Sample]:
        """Return the steps since the list was cleared last."""
        return self._recorder.samples

    def samples(
        self, rows: Sequence[int], lengths: Sequence[int], most_tokens: int | None = None
    ) -> Iterator[Sample]:
        """Yield the samples of decodes of so many rows and of prompts, each at several lengths, and
        of steps with both; the median of several steps that are alike. most_tokens: in the cache;
        None for as many as it has."""
        limit = self.engine.config.model.max_model_len - _MOST_ANSWER
        room = min(_most_tokens(self.engine), most_tokens or _most_tokens(self.engine))
        for length in (each for each in lengths if each <= limit):
            for count in rows:
                if count * (length + _MOST_ANSWER) <= room:
                    yield from self._decodes(count, length)
            yield from self._prompts(1, length)
            yield from self._prompts(4, length)
        yield from self._mixed(max(rows) // 2, min(lengths[-1], limit) // 2)

    def _decodes(self, rows: int, context: int) -> Iterator[Sample]:
        """Yield a step of so many decodes, unless the first ones end before the last prompt was
        computed."""
        self._recorder.samples.clear()
        numbers = self._add(rows, context, _MOST_ANSWER)
        found: list[Sample] = []
        while self.engine.has_work() and len(found) < _WARM_UP + _STEPS:
            self.engine.step()
            found = [
                each
                for each in self._recorder.samples
                if not each.shape.chunks and len(each.shape.contexts) == rows
            ]
        self.engine.pipeline.abort(numbers)
        self.engine.run()
        if len(found) > _WARM_UP:
            yield _median(found[_WARM_UP:])

    def _prompts(self, count: int, length: int) -> Iterator[Sample]:
        """Yield each of the steps that such prompts take."""
        rounds = []
        for _ in range(_ROUNDS):
            self._recorder.samples.clear()
            self._add(count, length, 1)
            self.engine.run()
            rounds.append(list(self._recorder.samples))
        for alike in zip(*rounds, strict=False):
            yield _median(alike)

    def _mixed(self, rows: int, length: int) -> Iterator[Sample]:
        """Yield steps in which a prompt comes beside answers."""
        alike = []
        for _ in range(_ROUNDS):
            self._recorder.samples.clear()
            self._add(rows, length, _STEPS)
            while self.engine.pipeline.has_work() and not any(
                not each.shape.chunks for each in self._recorder.samples
            ):
                self.engine.step()
            self._add(1, length, 1)
            self.engine.run()
            alike += [
                each
                for each in self._recorder.samples
                if each.shape.chunks and len(each.shape.contexts)
            ][:1]
        yield _median(alike)

    def _add(self, count: int, length: int, answers: int) -> list[int]:
        params = SamplingParams(temperature=0.0, max_tokens=answers, ignore_eos=True)
        return [
            self.engine.add(self.engine.random_prompt(length, self._draw), params)
            for _ in range(count)
        ]


def _most_tokens(engine: OfflineEngine) -> int:
    return engine.report.num_blocks * engine.report.block_size


def _median(samples: Iterable[Sample]) -> Sample:
    """Return the sample in the middle by its seconds."""
    ordered = sorted(samples, key=lambda each: each.seconds)
    return ordered[len(ordered) // 2]
