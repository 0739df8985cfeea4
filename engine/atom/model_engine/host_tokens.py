"""Sampled tokens on their way from the device to the host.

A ring of pinned buffers, made once: allocating pinned memory per step would cost more than a small
step itself. A buffer is used again only after its step was collected (the pipeline keeps at most
one step behind the one that runs).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom.utils.device import Device

_RING = 3


@dataclass(frozen=True, slots=True)
class PendingTokens:
    """token_ids: int32 on the host, valid once `copied` has happened (None: already)."""

    token_ids: torch.Tensor
    copied: torch.cuda.Event | None


class HostTokens:
    def __init__(self, max_rows: int, device: Device) -> None:
        count = _RING if device.is_gpu else 0
        self._buffers = [
            torch.zeros(max_rows, dtype=torch.int32, pin_memory=True) for _ in range(count)
        ]
        self._events = [torch.cuda.Event() for _ in range(count)]
        self._next = 0

    def next(self) -> tuple[torch.Tensor, torch.cuda.Event]:
        """A buffer to copy into, and the event to record behind the copy."""
        index = self._next
        self._next = (index + 1) % len(self._buffers)
        return self._buffers[index], self._events[index]
