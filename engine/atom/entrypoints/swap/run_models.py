"""`run_models`: the whole server of several models, as one process with each model's engine
processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Sequence

import uvloop

from atom.entrypoints.http.listener import listen, url_of
from atom.entrypoints.process.logs import flush_logs
from atom.entrypoints.process.process_conduct import (
    allow_many_open_files,
    spare_the_collector,
    switch_threads_soon,
    yield_cores,
)
from atom.entrypoints.server.engine_source import OPENING_THREAD
from atom.entrypoints.server.run_server import LEAST_OPEN_FILES, STOP_SIGNALS, address_of
from atom.entrypoints.startup.startup_table import print_startup
from atom.entrypoints.startup.supported_endpoints import Offer
from atom.entrypoints.swap.models_process import ModelsProcess, ServedModel
from atom.entrypoints.swap.shared_device import Sharing
from atom.model_engine.wire.engine_protocol import EngineReport
from atom.utils.exhausted import too_few_files

logger = logging.getLogger(__name__)


def run_models(models: Sequence[ServedModel], sharing: Sharing) -> int:
    """Serve until a signal; the exit code. Raises `AtomError` when it could not start or had to
    stop."""
    open_files = allow_many_open_files()  # our processes inherit it
    if open_files < LEAST_OPEN_FILES:
        raise too_few_files(open_files, LEAST_OPEN_FILES)
    options = models[0].options
    seconds = options.limits.reader_timeout_seconds or 0.0
    listener = listen(options.listen.host, options.listen.port, reader_timeout_seconds=seconds)
    with (
        contextlib.closing(listener),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        code = runner.run(_run(models, sharing, listener))
    if any(thread.name == OPENING_THREAD for thread in threading.enumerate()):
        # A download cannot be interrupted, and the interpreter would wait for its threads.
        flush_logs()
        os._exit(code)
    return code


async def _run(models: Sequence[ServedModel], sharing: Sharing, listener: socket.socket) -> int:
    options = models[0].options
    url = url_of(listener, tls=options.listen.tls is not None)
    address = address_of(url, options)

    def announce(started: Sequence[tuple[EngineReport, Offer]]) -> None:
        spare_the_collector()
        switch_threads_soon()
        if started[0][0].on_cpu:
            yield_cores()
        print_startup(started, address, verbose=options.verbose)
        logger.info("ready: %d models", len(started))

    process = ModelsProcess(models, sharing, listener, stop_signals=STOP_SIGNALS, announce=announce)
    return await process.run()
