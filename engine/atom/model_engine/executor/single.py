"""SingleDeviceExecutor: one model runner, in the engine core's own process.

A step then costs no hop between processes. The runner's handles of submitted steps, which hold
tensors of its device, stay here, each under its ticket.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from atom.config import Config
from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput, TokenMask
from atom.model_engine.control import RankControl
from atom.model_engine.executor.base import OneScheduler
from atom.model_engine.executor.moved_pages import MovedPages
from atom.model_engine.model_runner import ModelRunner
from atom.model_engine.page_access import PageAccess
from atom.model_engine.page_moves import HostPageMover
from atom.model_engine.runner.lora_adapters import HostAdapter
from atom.model_engine.runner.step_graphs import Progress
from atom.model_engine.runner.submitted_step import SubmittedStep
from atom.model_engine.wire.engine_protocol import EngineReport


class SingleDeviceExecutor(OneScheduler):
    def __init__(self, config: Config, runner: ModelRunner | None = None) -> None:
        """runner: one that shares its model with others; None for one that is alone."""
        self.runner = runner or ModelRunner(config)
        self._tickets = itertools.count()
        self._submitted: dict[int, SubmittedStep] = {}

    @property
    def steps_behind(self) -> int:
        return self.runner.steps_behind

    @property
    def wake_fds(self) -> Sequence[int]:
        return () if self.runner.tier is None else self.runner.tier.wake_fds

    @property
    def pages(self) -> HostPageMover | None:
        tier = self.runner.tier
        return None if tier is None else MovedPages(tier, self.control)

    def initialize(self, progress: Progress) -> EngineReport:
        return self.runner.initialize(progress)

    def call_after_layers(self, callback: Callable[[], None]) -> None:
        self.runner.call_after_layers(callback)

    def submit(self, batch: ScheduledBatch) -> int:
        ticket = next(self._tickets)
        self._submitted[ticket] = self.runner.steps.submit(batch)
        return ticket

    def sample(self, ticket: int, mask: TokenMask | None = None) -> None:
        self.runner.steps.sample(self._submitted[ticket], mask)

    def collect(self, ticket: int) -> ScheduledBatchOutput:
        return self.runner.steps.collect(self._submitted.pop(ticket))

    def read_lora(self, path: str) -> HostAdapter:
        assert self.runner.adapters is not None, "adapters come where they are enabled"
        return self.runner.adapters.read(path)

    def control(self, call: RankControl[Any], prepared: Any = None) -> None:
        call.on_rank(self.runner, prepared)

    def transferred_pages(self) -> PageAccess:
        return self.runner.transferred_pages()

    def close(self) -> None:
        pass

    def who_is_behind(self) -> str | None:
        return None
