"""LoraLoading: loads and removes adapters while an engine core runs steps.

A separate thread reads and checks an adapter while steps run; the core's thread then adds the
adapter between two steps. A removed adapter stays until none of its requests is open. Owned by
EngineCore, on whose thread everything here runs except the reading.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from atom.errors import AdapterError
from atom.model_engine.control import LoadLora, UnloadLora
from atom.model_engine.executor.base import Executor
from atom.model_engine.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class _Reading:
    call: LoadLora
    adapter: Future[Any]
    tell: Callable[[str | None], None]


class LoraLoading:
    """Loads and unloads adapters between steps. wake_fd: readable when `turn` has something
    to do, for a loop that sleeps."""

    def __init__(self, executor: Executor, numbers: set[int]) -> None:
        """numbers: of the adapters that requests may have; changed here as they come and go."""
        self._executor = executor
        self._numbers = numbers
        self._readers = ThreadPoolExecutor(1, "read-adapters")
        self._readings: list[_Reading] = []
        self._leaving: set[int] = set()
        self.wake_fd, self._wake = os.pipe()

    def load(self, call: LoadLora, tell: Callable[[str | None], None]) -> None:
        """Begin to read an adapter. tell: called once with its fault, or with None when requests
        may use it."""
        adapter = self._readers.submit(self._executor.read_lora, call.path)
        self._readings.append(_Reading(call, adapter, tell))
        adapter.add_done_callback(lambda _: os.write(self._wake, b"!"))

    def unload(self, number: int) -> None:
        """Let an adapter go, once its requests have ended; unknown ones are gone."""
        self._leaving.add(number)
        self._numbers.discard(number)

    def turn(self, scheduler: Scheduler, open_requests: tuple[int, ...]) -> None:
        """Add the adapters that have been read, and drop removed adapters without requests.
        open_requests: of the core, including those that the scheduler has not seen yet."""
        if any(reading.adapter.done() for reading in self._readings):
            os.read(self.wake_fd, 1024)
            done = [reading for reading in self._readings if reading.adapter.done()]
            self._readings = [each for each in self._readings if each not in done]
            for reading in done:
                reading.tell(self._take(reading))
        if self._leaving and set(open_requests) <= set(scheduler.open_requests):
            for number in [each for each in self._leaving if not scheduler.loras.is_open(each)]:
                self._leaving.remove(number)
                scheduler.loras.forget(number)
                scheduler.blocks.forget_lora(number)
                self._executor.control(UnloadLora(number))

    @property
    def has_work(self) -> bool:
        return bool(self._readings or self._leaving)

    def close(self) -> None:
        self._readers.shutdown(wait=False)

    def _take(self, reading: _Reading) -> str | None:
        try:
            adapter = reading.adapter.result()
        except AdapterError as error:
            return str(error)
        except Exception as error:  # a thread's fault is reported to its caller, and ends nothing
            return f"{type(error).__name__}: {error}"
        self._executor.control(reading.call, adapter)
        self._numbers.add(reading.call.number)
        return None
