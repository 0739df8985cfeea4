"""Executor: the interface between the engine core and the runners of its batches.

Calls are typed, and a ticket (a number) names a submitted step: no device object crosses the
interface, so that runners may live in other processes. Implemented by single.py for one device, and
by tensor_parallel/ and expert_parallel/ for several; tests and benchmarks substitute their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput, TokenMask
from atom.model_engine.control import RankControl
from atom.model_engine.page_access import PageAccess
from atom.model_engine.page_moves import HostPageMover
from atom.model_engine.wire.engine_protocol import EngineReport
from atom.model_ops.expert_parallel.eplb import ExpertLoad


class GroupEndedError(Exception):
    """Ranks that compute together have ended in order, and this one ends with them."""


class StepExecutor(Protocol):
    """Runs batches. Outputs are collected in the order of submission, each once."""

    def submit(self, batch: ScheduledBatch) -> int:
        """Start a batch; return its ticket. It returns at once or, without a device, when the batch
        is computed. For a batch with `samples_later` only the layers run: `sample` follows before
        the next batch."""
        ...

    def sample(self, ticket: int, mask: TokenMask | None = None) -> None:
        """Sample a submitted batch with `samples_later`; `mask`: the allowed tokens of its guided
        rows."""
        ...

    def collect(self, ticket: int) -> ScheduledBatchOutput:
        """Wait for the tokens of a sampled batch."""
        ...


class Executor(StepExecutor, Protocol):
    """Loads a model and then runs its batches."""

    @property
    def steps_behind(self) -> int:
        """Return how many steps the host may be behind: 0 if `submit` computes everything."""
        ...

    def initialize(self, progress: Callable[[str, float], None]) -> EngineReport:
        """Load the weights, allocate the KV cache and return the report. progress is called with
        the phase and its share done, 0 to 1. Raises `ModelError` or `ConfigError`."""
        ...

    def call_after_layers(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every layer of a step, if the host waits for layers."""
        ...

    @property
    def wake_fds(self) -> Sequence[int]:
        """Return the descriptors that can be read when another rank calls."""
        ...

    def is_called(self) -> bool:
        """Return whether other ranks have begun a step that needs this one. Raises
        `GroupEndedError`, as every call that computes may."""
        ...

    def join(self) -> None:
        """Take part in the step that other ranks have begun, if any, without a batch of ours."""
        ...

    @property
    def expert_load(self) -> ExpertLoad | None:
        """Return how evenly ranks that share experts were chosen; None where experts do not
        move."""
        ...

    def read_lora(self, path: str) -> Any:
        """Read and check an adapter, on any thread. Raises `AdapterError`."""
        ...

    def control(self, call: RankControl[Any], prepared: Any = None) -> None:
        """Carry a control call out on the ranks that it names, and return when the rank of this
        process is done. prepared: the result of work that this rank has done ahead, such as an
        adapter that was read. Raises the errors of the call."""
        ...

    @property
    def pages(self) -> HostPageMover | None:
        """Return the mover of pages between the KV cache and the host's memory; None without such a
        tier."""
        ...

    def transferred_pages(self) -> PageAccess:
        """Return the pages of the KV cache for engines that exchange them; of a model copy whose
        ranks are all on this node."""
        ...

    def close(self) -> None:
        """Stop the runners; no call follows."""
        ...

    def who_is_behind(self) -> str | None:
        """Describe the runner that the others wait for; None if there is only one. Any thread may
        call this."""
        ...


class OneScheduler:
    """Answers of an executor whose engine core has the only scheduler: no other rank calls it."""

    @property
    def wake_fds(self) -> Sequence[int]:
        return ()

    def is_called(self) -> bool:
        return False

    def join(self) -> None:
        pass

    @property
    def expert_load(self) -> ExpertLoad | None:
        return None
