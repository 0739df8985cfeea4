"""`run_server`: the whole server, as one process with its engine processes, or several with them.

With one API server (the default) this process serves HTTP itself (http_process.py); with more it
owns them and the engine, and serves nothing (api_fleet.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading

import uvloop

from atom.entrypoints.http.listener import listen, listen_shared, url_of
from atom.entrypoints.process.logs import flush_logs
from atom.entrypoints.process.process_conduct import allow_many_open_files
from atom.entrypoints.server.api_fleet import ApiFleet
from atom.entrypoints.server.engine_source import OPENING_THREAD, OwnEngine, WorkersEngine
from atom.entrypoints.server.http_process import HttpProcess
from atom.entrypoints.server.server_options import ServerOptions
from atom.entrypoints.startup.next_steps import Address
from atom.entrypoints.startup.startup_table import print_startup
from atom.entrypoints.startup.supported_endpoints import Offer
from atom.model_engine.wire.engine_protocol import EngineReport
from atom.utils.exhausted import too_few_files

logger = logging.getLogger(__name__)

LEAST_OPEN_FILES = 64
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run_server(options: ServerOptions) -> int:
    """Serve until a signal; the exit code. Raises `AtomError` when it could not start or had to
    stop."""
    open_files = allow_many_open_files()  # our processes inherit it
    if open_files < LEAST_OPEN_FILES:
        raise too_few_files(open_files, LEAST_OPEN_FILES)
    host, port, count = options.listen.host, options.listen.port, options.listen.api_servers
    seconds = options.limits.reader_timeout_seconds or 0.0
    if count == 1:
        listeners = [listen(host, port, reader_timeout_seconds=seconds)]
    else:
        listeners = listen_shared(host, port, count, reader_timeout_seconds=seconds)
    with contextlib.ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(contextlib.closing(listener))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(_run(options, listeners))
    if any(thread.name == OPENING_THREAD for thread in threading.enumerate()):
        # A download cannot be interrupted, and the interpreter would wait for its threads.
        flush_logs()
        os._exit(code)
    return code


def address_of(url: str, options: ServerOptions) -> Address:
    """Return the address of a server with these options, which listens on `url`."""
    tls = options.listen.tls
    return Address(
        url,
        needs_key=bool(options.clients.num_keys),
        console=options.listen.console,
        client_certificate=tls is not None and tls.requires_certificates,
    )


async def _run(options: ServerOptions, listeners: list[socket.socket]) -> int:
    url = url_of(
        listeners[0], tls=options.listen.tls is not None
    )  # while they are open here: several processes take them over

    address = address_of(url, options)

    def announce(report: EngineReport, offer: Offer) -> None:
        print_startup([(report, offer)], address, verbose=options.verbose)
        logger.info("ready")

    if len(listeners) > 1:
        return await ApiFleet(options, listeners, STOP_SIGNALS, announce).run()
    process = HttpProcess(
        options,
        listeners[0],
        WorkersEngine(options) if options.peers.worker_urls else OwnEngine(options),
        stop_signals=STOP_SIGNALS,
        announce=announce,
    )
    return await process.run()
