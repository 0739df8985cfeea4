"""SideStream: copies of a thread beside the steps."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch


class SideStream:
    """A stream of the device for each thread; nothing on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own = threading.local()

    @contextlib.contextmanager
    def beside_steps(self, after: object | None = None) -> Iterator[int]:
        """Let the body copy on the stream of this thread, whose handle is given, and wait for it.
        after: an event that is waited for first."""
        if self._device.type != "cuda":
            yield 0
            return
        if not hasattr(self._own, "stream"):
            self._own.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream = self._own.stream
        with torch.cuda.stream(stream):
            if isinstance(after, torch.cuda.Event):
                stream.wait_event(after)
            yield int(stream.cuda_stream)
            stream.synchronize()
