"""LoraSlots: which adapters are on the device, in whose slots running rows find them.

An adapter stays in its slot while rows of it run; of slots without rows the one that was left the
longest ago is given to another adapter. A request whose adapter finds no slot waits, and with it
those behind it: requests are served in one order, whatever their adapters. Used by Scheduler only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from atom.model_engine.batch import LoraLoad
from atom.model_engine.request import LoRARequest
from atom.model_engine.sequence import Sequence

_NOBODY = 0  # adapters are numbered from 1


class LoraSlots:
    def __init__(self, count: int) -> None:
        self._holds = [_NOBODY] * count
        self._idle = list(range(count))  # slots without rows, the longest ago left first
        self._running: Counter[int] = Counter()  # rows of each adapter
        self._open: Counter[int] = Counter()  # requests of each that have not ended

    def begin(self, lora: LoRARequest | None) -> None:
        """Count a request that arrives."""
        if lora is not None:
            self._open[lora.lora_int_id] += 1

    @contextmanager
    def begun(self, lora: LoRARequest | None) -> Iterator[None]:
        """Count a request that arrives, unless the body, which queues it, fails."""
        self.begin(lora)
        try:
            yield
        except Exception:
            self.end(lora)
            raise

    def end(self, lora: LoRARequest | None) -> None:
        """Count a request that ends."""
        if lora is not None:
            self._open[lora.lora_int_id] -= 1
            if not self._open[lora.lora_int_id]:
                del self._open[lora.lora_int_id]

    def has_room(self, lora: LoRARequest) -> bool:
        """Return whether a row of the adapter could run now."""
        return bool(self._idle) or lora.lora_int_id in self._running

    def enter(self, sequence: Sequence) -> LoraLoad | None:
        """Assign a sequence that begins to run the slot of its adapter, for which there is room.
        Returns the load that puts the adapter there, None if it is there already."""
        if sequence.lora is None:
            return None
        number = sequence.lora.lora_int_id
        if number in self._holds:
            slot, is_new = self._holds.index(number), False
        else:
            free = (slot for slot in self._idle if self._holds[slot] == _NOBODY)
            slot, is_new = next(free, self._idle[0]), True
            self._holds[slot] = number
        if not self._running[number]:
            self._idle.remove(slot)
        self._running[number] += 1
        sequence.lora_slot = slot
        return LoraLoad(number, slot) if is_new else None

    def leave(self, lora: LoRARequest) -> None:
        """Count a row that stops to run, were it for a while."""
        number = lora.lora_int_id
        self._running[number] -= 1
        if not self._running[number]:
            del self._running[number]
            self._idle.append(self._holds.index(number))

    def forget(self, number: int) -> None:
        """Leave an adapter's slot to others at once; no request of it is open."""
        assert number not in self._running, "an adapter with rows stays in its slot"
        if number in self._holds:
            self._holds[self._holds.index(number)] = _NOBODY

    def forget_all(self) -> None:
        """Load every adapter again at its next use: no rows run, and the device's memory has
        changed."""
        assert not self._running, "adapters with rows stay in their slots"
        self._holds = [_NOBODY] * len(self._holds)

    def is_open(self, number: int) -> bool:
        """Return whether a request of the adapter has not ended."""
        return number in self._open

    @property
    def running(self) -> tuple[int, ...]:
        """Return the numbers of the adapters that rows run with."""
        return tuple(self._running)

    @property
    def waiting(self) -> tuple[int, ...]:
        """Return the numbers of the adapters of requests that wait."""
        return tuple(
            number for number, count in self._open.items() if count > self._running.get(number, 0)
        )
