"""CoreDriver: the engine core in this process, stepped until every request has ended.

The engine loop without sockets, for tests of what is computed rather than of how it travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput
from atom.model_engine.executor.base import StepExecutor
from atom.model_engine.request import TokenLogprobs
from atom.model_engine.step_pipeline import StepPipeline
from atom.sampling_params import SamplingParams
from benchmarks.engines.offline_engine import OfflineEngine

_Asked = tuple[Any, ...]  # the arguments of `add`


class SamplesLater:
    """An executor that samples every batch by a call of its own, after its forward."""

    def __init__(self, executor: StepExecutor) -> None:
        self._executor = executor

    def submit(self, batch: ScheduledBatch) -> int:
        ticket = self._executor.submit(replace(batch, samples_later=True))
        self._executor.sample(ticket)
        return ticket

    def collect(self, ticket: int) -> ScheduledBatchOutput:
        return self._executor.collect(ticket)


class CoreDriver(OfflineEngine):
    def __init__(
        self, model: str, *, samples_later: bool = False, threads: int | None = None, **options: Any
    ) -> None:
        """threads: that compute, until the next engine begins; None for what the engine takes."""
        super().__init__(model, **{"device": "cpu", **options})
        if threads is not None:
            torch.set_num_threads(threads)
        self.vocab_size = self.config.model.vocab_size
        self.logprobs: list[list[TokenLogprobs]] = []
        self.prompt_logprobs: list[list[TokenLogprobs]] = []
        if samples_later:
            depth = options.get("depth")
            self.pipeline = StepPipeline(
                self.scheduler,
                SamplesLater(self.executor),
                depth=self.executor.steps_behind if depth is None else depth,
            )

    def generate(self, prompts: list[list[int]], **params: Any) -> list[list[int]]:
        """Greedy unless told otherwise; all prompts at once; their new tokens in order."""
        sampling = SamplingParams(**{"temperature": 0.0, **params})
        return self.generate_each([(prompt, sampling) for prompt in prompts])

    def generate_each(self, requests: Sequence[_Asked]) -> list[list[int]]:
        """The same with parameters of their own, and perhaps an adapter. What the engine tells of
        log-probabilities is then in `logprobs` and `prompt_logprobs`, in the same order."""
        tokens: dict[int, list[int]] = {self.add(*request): [] for request in requests}
        entries: dict[int, list[TokenLogprobs]] = {number: [] for number in tokens}
        prompt_entries: dict[int, list[TokenLogprobs]] = {number: [] for number in tokens}
        while self.has_work():
            result = self.step()
            if result is None:
                continue
            for number, run in result.runs():
                tokens[number] += run
            for number, entry in result.logprobs.entries() if result.logprobs else ():
                # A row that ended while the next step ran is sampled once more; nobody takes that.
                if number in result.request_ids:
                    entries[number].append(entry)
            for number, entry in result.prompt_logprobs.entries() if result.prompt_logprobs else ():
                prompt_entries[number].append(entry)
            self.scheduler.blocks.pool.check_integrity()
        self.logprobs, self.prompt_logprobs = list(entries.values()), list(prompt_entries.values())
        return list(tokens.values())
