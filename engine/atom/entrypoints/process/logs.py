"""Logging of the command-line programs: one line per record on stderr, written by its own thread.

A slow terminal or pipe must not delay a token, so records only enter a queue on the thread that
logs. Called once at the start of a program.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import logging.handlers
import queue
import sys

LEVELS = ("debug", "info", "warning", "error")
_LONGEST_PATH = 500  # characters
_PROBED_PATHS = frozenset({"/health", "/ready", "/ping", "/startup", "/live", "/load", "/metrics"})


class _QueuedLogs(logging.handlers.QueueHandler):
    """Queues records for a thread that writes them."""

    def __init__(self, process: str) -> None:
        records: queue.Queue[logging.LogRecord] = queue.Queue()
        super().__init__(records)
        console = logging.StreamHandler()
        name = f"{process} " if process else ""
        console.setFormatter(
            logging.Formatter(f"%(asctime)s %(levelname)s {name}%(name)s: %(message)s")
        )
        self._writer: logging.handlers.QueueListener | None = logging.handlers.QueueListener(
            records, console
        )
        self._writer.start()

    def stop(self) -> None:
        """Write the queued records and stop the thread. A second call does nothing: a caller that
        restores the handlers of a process brings this one back."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.stop()

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Shorten a logged path, which may have 64 KiB of the client's choice."""
        arguments = _access_arguments(record)
        if arguments and len(path := str(arguments[2])) > _LONGEST_PATH:
            record.args = (*arguments[:2], f"{path[:_LONGEST_PATH]}...", *arguments[3:])
        prepared: logging.LogRecord = super().prepare(record)
        return prepared


def configure_logging(level: str, *, process: str = "") -> None:
    """Route every record of the process through the writing thread. process: its name in the
    lines, where several write to one place."""
    handler = _QueuedLogs(process)
    handler.addFilter(_is_worth_a_line)
    atexit.register(flush_logs)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    if level != "debug":
        logging.getLogger("uvicorn.error").setLevel("WARNING")  # it narrates its life at INFO


def flush_logs() -> None:
    """Write the queued records and stop the thread; later records are not written."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _QueuedLogs):
            logging.getLogger().removeHandler(handler)
            handler.stop()


def print_error(error: Exception | str) -> None:
    """Print the error that ends the program to stderr, after all log records: it is the last
    line."""
    flush_logs()
    with contextlib.suppress(OSError):  # the reader of stderr has gone
        print(f"error: {error}", file=sys.stderr)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Return whether an access is worth logging. Probes and scrapes arrive every few seconds
    without news: the cause of a failing probe is logged elsewhere."""
    arguments = _access_arguments(record)
    return not arguments or str(arguments[2]).partition("?")[0] not in _PROBED_PATHS


def _access_arguments(record: logging.LogRecord) -> tuple[object, ...]:
    """Return client, method, path, version and status of a line of the access log; else nothing."""
    arguments = record.args
    if record.name != "uvicorn.access" or not isinstance(arguments, tuple) or len(arguments) != 5:
        return ()
    return arguments
