"""A node that serves nothing: `atom serve --nnodes N --node-rank R`, R from 1.

Owns the process that computes for the first node, as a server owns its engine processes. A signal
ends it while it waits for the first node; later that one ends it, when it has finished what it has
begun. A second signal ends it at once.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading

from atom.config import Config
from atom.model_engine.wire.core_processes import thread_waiting
from atom.utils.child_process import ChildProcess, Command

logger = logging.getLogger(__name__)

_MODULE = "atom.model_engine.executor.node_main"
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_follower_node(config: Config) -> int:
    """Until the group has ended; the exit code."""
    place = config.parallel.nodes
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
