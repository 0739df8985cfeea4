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
    to do, for a loop that sleeps; digests: of the files of the adapters that were loaded, by
    number."""

    def __init__(
        self, executor: Executor, numbers: set[int], digest_of: Callable[[str], str] | None
    ) -> None:
        """numbers: of the adapters that requests may have; changed here as they come and go;
        digest_of: returns the digest of an adapter's files, by its path; None if no page leaves
        the process."""
        self._executor = executor
        self._numbers = numbers
        self._digest_of = digest_of
        self.digests: dict[int, str] = {}
        self._readers = ThreadPoolExecutor(1, "read-adapters")
        self._readings: list[_Reading] = []
        self._leaving: set[int] = set()
        self.wake_fd, self._wake = os.pipe()

    def load(self, call: LoadLora, tell: Callable[[str | None], None]) -> None:
        """Begin to read an adapter. tell: called once with its fault, or with None when requests
        may use it."""
        adapter = self._readers.submit(self._read, call.path)
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
                reading.tell(self._take(reading, scheduler))
        if self._leaving and set(open_requests) <= set(scheduler.open_requests):
            for number in [each for each in self._leaving if not scheduler.loras.is_open(each)]:
                self._leaving.remove(number)
                scheduler.loras.forget(number)
                self.digests.pop(number, None)
                scheduler.blocks.forget_lora(number)
                self._executor.control(UnloadLora(number))

    @property
    def has_work(self) -> bool:
        return bool(self._readings or self._leaving)

    def close(self) -> None:
        self._readers.shutdown(wait=False)

    def _read(self, path: str) -> tuple[Any, str | None]:
        """Read an adapter, and the digest of its files if pages need it; None if they change
        meanwhile."""
        if self._digest_of is None:
            return self._executor.read_lora(path), None
        before = self._digest_of(path)
        adapter = self._executor.read_lora(path)
        return adapter, before if self._digest_of(path) == before else None

    def _take(self, reading: _Reading, scheduler: Scheduler) -> str | None:
        try:
            adapter, digest = reading.adapter.result()
        except AdapterError as error:
            return str(error)
        except Exception as error:  # a thread's fault is reported to its caller, and ends nothing
            return f"{type(error).__name__}: {error}"
        self._executor.control(reading.call, adapter)
        self._numbers.add(reading.call.number)
        if digest is not None:
            self.digests[reading.call.number] = digest
            if scheduler.tiers is not None:
                scheduler.tiers.note_adapter(reading.call.number, digest)
        return None
