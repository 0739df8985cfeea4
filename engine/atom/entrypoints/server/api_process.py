"""One of several HTTP processes, started by ApiFleet only:
`python -m atom.entrypoints.server.api_process NUMBER DESCRIPTOR LEVEL`.

DESCRIPTOR is its listening socket, inherited. ServerOptions come as the first line on standard
input, then messages of the owner (owner_messages.py); the input stays open as a lifeline. Its words
on standard output are where engine processes of other nodes find it, if there are any, and that it
takes requests; errors are the owner's to print.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys

import msgspec
import uvloop

from atom.entrypoints.process.logs import configure_logging, flush_logs
from atom.entrypoints.server.engine_source import AttachedEngine
from atom.entrypoints.server.http_process import HttpProcess
from atom.entrypoints.server.owner_messages import (
    LISTENS,
    READY,
    AllReady,
    EngineFailed,
    ModelOpened,
    OwnerMessage,
    RankLost,
    ServerLost,
    from_line,
)
from atom.entrypoints.server.server_options import ServerOptions
from atom.entrypoints.startup.supported_endpoints import Offer
from atom.errors import AtomError
from atom.model_engine.wire.engine_protocol import EngineReport
from atom.model_engine.wire.other_nodes import ClientPorts
from atom.utils.exhausted import exhausted
from atom.utils.parent_watch import ParentLines, end_with_parent

logger = logging.getLogger(__name__)


def main() -> int:
    end_with_parent()
    number, descriptor, level = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    # They may come to the whole process group; ending in order is the owner's business.
    for number_ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number_ignored, signal.SIG_IGN)
    configure_logging(level, process=f"api-{number}")
    parent = ParentLines()
    options = ServerOptions.from_json(parent.next())
    with (
        socket.socket(fileno=descriptor) as listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        try:
            return runner.run(_run(options, listener, number, parent))
        except AtomError as error:
            logger.debug("ended: %s", error)
            return 1
        except Exception as error:
            known = exhausted(error)
            if known is None:
                raise
            logger.error("%s", known)
            return 1


async def _run(
    options: ServerOptions, listener: socket.socket, number: int, parent: ParentLines
) -> int:
    source = AttachedEngine(options, number, _say_ports)
    process = HttpProcess(options, listener, source, announce=_say_ready, alone=False)

    def handle(message: OwnerMessage) -> None:
        if isinstance(message, ModelOpened):
            source.model_opened(message)
        elif isinstance(message, EngineFailed):
            source.engine_failed(message.message)
        elif isinstance(message, RankLost):
            source.rank_lost(message.rank, message.message)
        elif isinstance(message, ServerLost):
            process.server_lost(message.message)
        elif isinstance(message, AllReady):
            process.all_ready()
        else:
            process.stop()

    loop = asyncio.get_running_loop()

    def on_line(line: bytes) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: it ends anyway
            loop.call_soon_threadsafe(handle, from_line(line))

    parent.follow(on_line)
    return await process.run()


def _say_ports(ports: ClientPorts) -> None:
    os.write(sys.stdout.fileno(), LISTENS + msgspec.json.encode(ports) + b"\n")


def _say_ready(report: EngineReport, offer: Offer) -> None:
    os.write(sys.stdout.fileno(), READY + b"\n")


if __name__ == "__main__":
    code = main()
    flush_logs()
    os._exit(code)  # a thread may still load the tokenizer of a server that is to end
