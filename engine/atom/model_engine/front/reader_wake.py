"""ReaderWake: how the streams of one call tell their one reader that there is something to take.

A reader either waits, as a task, or listens: then it is called in the very turn of the event loop
that brought the outputs, which costs no task switch per token. Made by AsyncLLMEngine with the
streams; whoever gives them outputs notifies once per step. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ReaderWake:
    __slots__ = ("_listener", "_something")

    def __init__(self) -> None:
        self._something = asyncio.Event()
        self._listener: Callable[[], None] | None = None

    def notify(self) -> None:
        if self._listener is not None:
            self._listener()
        else:
            self._something.set()

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Call it from now on; it must not raise. None: nobody listens any more."""
        self._listener = listener

    def clear(self) -> None:
        """What comes from now on is what `wait` waits for."""
        self._something.clear()

    async def wait(self) -> None:
        await self._something.wait()
