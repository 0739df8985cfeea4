"""A node that serves nothing: `atom serve --nnodes N --node-rank R`, R from 1.

Owns the process that computes for the first node, as a server owns its engine processes. A signal
ends it while it waits for the first node; later the first node ends it, after its running work. A
second signal ends it at once.

If a supervisor restarts ended containers, ATOM_JOIN_ONCE names a file that only this place sees: a
process that finds the file runs in a restarted container. Its group has ended, and the next group,
which uses the same address for its first node, has a separate place for each node: so the process
joins none, and waits to be ended.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path

from atom.config import Config
from atom.model_engine.wire.core_processes import thread_waiting
from atom.utils.child_process import ChildProcess, Command

logger = logging.getLogger(__name__)

_MODULE = "atom.model_engine.executor.nodes.node_main"
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_JOIN_ONCE_VARIABLE = "ATOM_JOIN_ONCE"


def run_follower_node(config: Config) -> int:
    """Run this node's ranks until the group has ended, and return the exit code."""
    place = config.parallel.nodes
    joined_file = os.environ.get(_JOIN_ONCE_VARIABLE)
    if joined_file and not _is_first_start(Path(joined_file)):
        logger.warning(
            "node %d was started here before (%s), and its group has ended; it joins no other, and "
            "waits to be ended",
            place.rank,
            joined_file,
        )
        return _wait_to_be_ended()
    ended = threading.Event()
    level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
    environment = {**os.environ, **thread_waiting(os.environ)}
    command = Command([sys.executable, "-m", _MODULE, level], environment)
    name = f"node {place.rank}"
    child = ChildProcess(name, command, lambda _: ended.set())
    asked = threading.Event()

    def stop(number: int, _frame: object) -> None:
        if asked.is_set():
            child.send_signal(signal.SIGKILL)
        asked.set()
        child.send_signal(signal.SIGTERM)

    for number in _STOP_SIGNALS:
        signal.signal(number, stop)
    child.start()
    child.tell(config.to_json())
    logger.info(
        "node %d of %d computes for the first one at %s:%d, and serves nothing",
        place.rank,
        place.count,
        place.address,
        place.port,
    )
    ended.wait()
    code = child.returncode
    if code and not asked.is_set():
        logger.error("%s", child.last_words)
    return 0 if asked.is_set() or not code else 1


def _is_first_start(file: Path) -> bool:
    """Return whether the file was not there; it is from now on."""
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _wait_to_be_ended() -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    signal.sigwait(_STOP_SIGNALS)
    return 0
