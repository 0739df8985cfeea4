"""on_thread: blocking work on a thread, which has ended when its caller goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def on_thread(
    work: Callable[[], Result], undo: Callable[[Result], None] | None = None
) -> Result:
    """Run blocking work to its end, also if this is cancelled, so that no thread still writes when
    the next begins. undo: called with a result that was cancelled."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        if undo is not None and running.exception() is None:
            undo(running.result())
        raise
