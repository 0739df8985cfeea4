"""Steps of an engine in this process with their shapes and seconds, whatever it is given to do.

A step begins when it is submitted, or when the step before it ends, if that is later: the device
computes one at a time. Prompts are random, answers have their full length.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

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
    """A step, and how long it took in seconds; host_seconds: of these, until it was submitted."""

    shape: StepShape
    seconds: float
    host_seconds: float = 0.0


class Recorder:
    """An executor that notes the shape and the seconds of every step it passes on."""

    def __init__(self, executor: StepExecutor) -> None:
        self._executor = executor
        self._begun: dict[int, tuple[StepShape, float, float]] = {}
        self._last_end = 0.0
        self.samples: list[Sample] = []

    def submit(self, batch: ScheduledBatch) -> int:
        begun = time.perf_counter()
        ticket = self._executor.submit(batch)
        self._begun[ticket] = StepShape.of(batch), begun, time.perf_counter() - begun
        return ticket

    def sample(self, ticket: int, mask: TokenMask | None = None) -> None:
        self._executor.sample(ticket, mask)

    def collect(self, ticket: int) -> ScheduledBatchOutput:
        output = self._executor.collect(ticket)
        shape, begun, host_seconds = self._begun.pop(ticket)
        ended = time.perf_counter()
        self.samples.append(Sample(shape, ended - max(begun, self._last_end), host_seconds))
        self._last_end = ended
        return output


class RecordedEngine:
    """An engine whose steps are noted. depth: steps that the host is behind."""

    def __init__(self, engine: OfflineEngine) -> None:
        self._engine = engine
        self._recorder = Recorder(engine.executor)
        engine.pipeline = StepPipeline(
            engine.scheduler, self._recorder, depth=engine.executor.steps_behind
        )
        self._draw = np.random.default_rng(5)

    @property
    def steps(self) -> list[Sample]:
        """Return the steps since the list was cleared last."""
        return self._recorder.samples

    def samples(self, rows: Sequence[int], lengths: Sequence[int]) -> Iterator[Sample]:
        """Yield the samples of decodes of so many rows and of prompts, each at several lengths, and
        of steps with both; the median of several steps that are alike."""
        limit = self._engine.config.model.max_model_len - _MOST_ANSWER
        for length in (each for each in lengths if each <= limit):
            for count in rows:
                if count * (length + _MOST_ANSWER) <= _most_tokens(self._engine):
                    yield self._decodes(count, length)
            yield from self._prompts(1, length)
            yield from self._prompts(4, length)
        yield from self._mixed(max(rows) // 2, min(lengths[-1], limit) // 2)

    def _decodes(self, rows: int, context: int) -> Sample:
        self._recorder.samples.clear()
        # The first rows decode while the prompts of the last ones are computed.
        budget = self._engine.config.scheduler.max_num_batched_tokens
        self._add(rows, context, _WARM_UP + _STEPS + -(-rows * context // budget))
        self._engine.run()
        found = [
            each
            for each in self._recorder.samples
            if not each.shape.chunks and len(each.shape.contexts) == rows
        ]
        return _median(found[_WARM_UP - 1 :])

    def _prompts(self, count: int, length: int) -> Iterator[Sample]:
        """Yield each of the steps that such prompts take."""
        rounds = []
        for _ in range(_ROUNDS):
            self._recorder.samples.clear()
            self._add(count, length, 1)
            self._engine.run()
            rounds.append(list(self._recorder.samples))
        for alike in zip(*rounds, strict=False):
            yield _median(alike)

    def _mixed(self, rows: int, length: int) -> Iterator[Sample]:
        """Yield steps in which a prompt comes beside answers."""
        alike = []
        for _ in range(_ROUNDS):
            self._recorder.samples.clear()
            self._add(rows, length, _STEPS)
            while self._engine.pipeline.has_work() and not any(
                not each.shape.chunks for each in self._recorder.samples
            ):
                self._engine.step()
            self._add(1, length, 1)
            self._engine.run()
            alike += [
                each
                for each in self._recorder.samples
                if each.shape.chunks and len(each.shape.contexts)
            ][:1]
        yield _median(alike)

    def _add(self, count: int, length: int, answers: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=answers, ignore_eos=True)
        for _ in range(count):
            self._engine.add(self._engine.random_prompt(length, self._draw), params)


def _most_tokens(engine: OfflineEngine) -> int:
    return engine.report.num_blocks * engine.report.block_size


def _median(samples: Iterable[Sample]) -> Sample:
    """Return the sample in the middle by its seconds."""
    ordered = sorted(samples, key=lambda each: each.seconds)
    return ordered[len(ordered) // 2]
