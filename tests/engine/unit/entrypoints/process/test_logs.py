"""In a process of its own: what reaches standard error, in order, and from which thread."""

from __future__ import annotations

import subprocess
import sys

from tests.support.server.server_process import command_environment
from tests.support.waiting import HANG_SECONDS

SCRIPT = """
import logging, threading
from atom.entrypoints.process.logs import configure_logging
configure_logging("info")
access = logging.getLogger("uvicorn.access")
line = '%s - "%s %s HTTP/%s" %d'
for path in ("/health", "/startup", "/live", "/metrics?x=1", "/v1/models"):
    access.info(line, "1.2.3.4:5", "GET", path, "1.1", 200)
access.info(line, "1.2.3.4:5", "GET", "/health", "1.1", 503)
access.info(line, "1.2.3.4:5", "GET", "/long?" + "x" * 60_000, "1.1", 404)
logging.getLogger("uvicorn.error").info("chatter")
logging.getLogger("uvicorn.error").error("trouble")
logging.getLogger("atom").debug("too fine")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("atom").exception("failed")
logging.getLogger("atom").info("last words")
"""


def stderr_of(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=command_environment(),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    )
    return done.stderr


def test_records_are_all_written_at_exit_but_probes_chatter_and_endless_paths_never() -> None:
    written = stderr_of(SCRIPT)
    lines = written.splitlines()
    assert '"GET /v1/models HTTP/1.1" 200' in lines[0]
    assert '"GET /long?xxx' in lines[1]
    assert lines[1].endswith('xxx... HTTP/1.1" 404')
    assert len(lines[1]) < 1000
    assert lines[2].endswith("ERROR uvicorn.error: trouble")
    assert lines[3].endswith("ERROR atom: failed")
    assert "ZeroDivisionError" in written
    assert lines[-1].endswith("INFO atom: last words")
    for silent in ("/health", "/startup", "/live", "/metrics", "chatter", "too fine"):
        assert silent not in written


ERROR = """
import logging, time
from atom.entrypoints.process.logs import configure_logging, print_error
configure_logging("info")
console = logging.getLogger().handlers[0]._writer.handlers[0]
emit = console.emit
console.emit = lambda record: (time.sleep(0.2), emit(record))  # as a slow terminal does
logging.getLogger("atom").info("before")
print_error(ValueError("the end"))
"""


def test_the_error_that_ends_a_program_is_its_last_line() -> None:
    before, last = stderr_of(ERROR).splitlines()
    assert before.endswith("INFO atom: before")
    assert last == "error: the end"


RESTORED = """
import logging, sys
from atom.entrypoints.process.logs import configure_logging, flush_logs
configure_logging("info")
root = logging.getLogger()
(handler,) = root.handlers
flush_logs()
root.handlers = [handler]  # as a test does that restores what it found
root.info("its writer has ended")
flush_logs()
print("flushed twice", file=sys.stderr)
"""


def test_a_handler_that_comes_back_after_a_flush_is_flushed_again() -> None:
    assert stderr_of(RESTORED) == "flushed twice\n"
