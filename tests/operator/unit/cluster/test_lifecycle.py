"""The process starts when it can, and a signal ends it in good order at any time."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from atom_operator.cluster.errors import TransientError
from atom_operator.handlers import lifecycle
from tests.support.waiting import HANG_SECONDS


class Played:
    """A runtime that starts at the `starts_at`-th try; 0 means never."""

    def __init__(self, starts_at: int) -> None:
        self.starts_at = starts_at
        self.tries = 0
        self.tried = asyncio.Event()
        self.started = asyncio.Event()
        self.stopped = 0

    async def start(self) -> None:
        self.tries += 1
        self.tried.set()
        if self.tries != self.starts_at:
            raise TransientError("connection refused")
        self.started.set()

    async def stop(self) -> None:
        self.stopped += 1


async def end(running: asyncio.Task[None], number: int) -> None:
    os.kill(os.getpid(), number)
    async with asyncio.timeout(HANG_SECONDS):
        await running


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_starts_once_it_can_and_ends_at_a_signal(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(lifecycle, "_RETRY_SECONDS", 0.01)
    runtime = Played(starts_at=3)
    running = asyncio.create_task(lifecycle.run(runtime))
    await asyncio.wait_for(runtime.started.wait(), HANG_SECONDS)
    assert not running.done()
    await end(running, number)
    assert (runtime.tries, runtime.stopped) == (3, 1)


async def test_a_signal_ends_it_while_it_waits_for_the_cluster() -> None:
    runtime = Played(starts_at=0)
    running = asyncio.create_task(lifecycle.run(runtime))
    await asyncio.wait_for(runtime.tried.wait(), HANG_SECONDS)
    await end(running, signal.SIGTERM)
    assert runtime.stopped == 1


async def test_what_no_try_will_mend_ends_it_with_its_error() -> None:
    class Broken(Played):
        async def start(self) -> None:
            raise RuntimeError("a bug")

    runtime = Broken(starts_at=0)
    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(lifecycle.run(runtime), HANG_SECONDS)
    assert runtime.stopped == 1
