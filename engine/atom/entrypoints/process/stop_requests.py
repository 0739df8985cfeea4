"""StopRequests: signals, or an owner's call, as two events; and waiting for work until they come.

The first requests an orderly end, the second an immediate one. Used by the programs that serve;
each defines its orderly end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class StopRequests:
    """Listens for signals that ask the process to stop, on the running loop."""

    def __init__(self, numbers: Sequence[signal.Signals], on_stop: Callable[[], None]) -> None:
        """numbers: signals that count, SIGHUP unless the process was started to ignore it; none
        where another process speaks. on_stop: called with the first request."""
        self._on_stop = on_stop
        self.stop = asyncio.Event()
        self.stop_now = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in numbers:
            # As nohup has it; a shell's background jobs ignore SIGINT, which is no such wish.
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            loop.add_signal_handler(number, self.ask, number.name)

    def ask(self, signal_name: str | None = None) -> None:
        """Request a stop by a signal or (None) by the owner, who logs it himself."""
        again = self.stop.is_set()
        if signal_name is not None:
            ending = "again: stopping at once" if again else "shutting down"
            logger.log(logging.WARNING if again else logging.INFO, "%s: %s", signal_name, ending)
        if again:
            self.stop_now.set()
            return
        self._on_stop()
        self.stop.set()

    async def unless_stopped(self, work: Awaitable[Result]) -> Result | None:
        """Return the result of `work`, or None if a request to stop came first."""
        working = asyncio.ensure_future(work)
        await first_of(working, asyncio.ensure_future(self.stop.wait()))
        if working.done():
            return working.result()
        working.cancel()
        return None


async def first_of(*futures: asyncio.Future[Any]) -> None:
    """Return as soon as one future is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def on_daemon_thread(work: Callable[[], Result], *, name: str) -> Result:
    """Run work like asyncio.to_thread, but neither cancelling it nor ending the loop waits for
    it."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if outcome.done():  # cancelled meanwhile
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits any more
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await outcome
