"""The process: it starts the runtime, retries while the API server or the CRD is missing, and ends
in good order at a signal. Called by the command line; decides nothing."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable
from typing import Protocol

from atom_operator.cluster.errors import ClusterError

_logger = logging.getLogger(__name__)
_RETRY_SECONDS = 5.0


class Startable(Protocol):
    """Start and stop a part of the process. `start` returns when the part is under way."""

    def start(self) -> Awaitable[None]: ...

    def stop(self) -> Awaitable[None]: ...


async def run(runtime: Startable) -> None:
    """Run until SIGTERM or SIGINT; return when the requests in flight are answered."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    starting = asyncio.create_task(_start(runtime))
    ending = asyncio.create_task(ended.wait())
    try:
        await asyncio.wait([starting, ending], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        await ending
    finally:
        starting.cancel()
        ending.cancel()
        await asyncio.wait([starting, ending])
        await runtime.stop()


async def _start(runtime: Startable) -> None:
    while True:
        try:
            return await runtime.start()
        except ClusterError as error:
            _logger.warning(
                "cannot list AtomDeployments: %s; is the CRD installed? Again in %gs",
                error,
                _RETRY_SECONDS,
            )
        await asyncio.sleep(_RETRY_SECONDS)
