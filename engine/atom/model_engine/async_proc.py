"""AsyncIOProcManager: the engine core's way to its model runners, one per tensor-parallel rank.

The core calls runner methods by name and never touches a runner. This version runs one rank, in
the core's own process: a step then costs no hop between processes.
"""

from __future__ import annotations

from typing import Any

from atom.config import Config
from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput, TokenMask
from atom.model_engine.model_runner import ModelRunner


class AsyncIOProcManager:
    def __init__(self, config: Config) -> None:
        self._runner = ModelRunner(config)

    @property
    def steps_behind(self) -> int:
        return self._runner.steps_behind

    def submit(self, batch: ScheduledBatch) -> Any:
        return self.call_func("submit", batch)

    def sample(self, handle: Any, mask: TokenMask | None = None) -> None:
        """Sample a submitted batch that said `samples_later`."""
        self.call_func("sample", handle, mask)

    def collect(self, handle: Any) -> ScheduledBatchOutput:
        output: ScheduledBatchOutput = self.call_func("collect", handle)
        return output

    def call_func(self, func_name: str, *args: Any) -> Any:
        """Call `func_name` on every rank; rank 0's result. Exceptions pass through."""
        return getattr(self._runner, func_name)(*args)
