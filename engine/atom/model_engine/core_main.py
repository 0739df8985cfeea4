"""The engine process: `python -m atom.model_engine.core_main LEVEL`.

Started by CoreProcesses only. The configuration, which has the rank, and an order, which has the
addresses of clients and other cores, arrive as JSON lines on standard input, which then stays open
as a lifeline: when it closes, the parent is gone, and this process ends at once. A plain command
instead of `multiprocessing`: no pickle, and the caller's main module is not run again.
"""

from __future__ import annotations

import logging
import signal
import sys

import msgspec
import zmq

from atom.config import Config
from atom.errors import AtomError
from atom.model_engine.wire.core_processes import CoreOrder
from atom.model_engine.wire.core_sockets import ClientLostError, CoreSockets
from atom.model_engine.wire.engine_protocol import ExecutorFailedBody
from atom.model_engine.wire.peer_mesh import MeshOrder
from atom.utils.collector import collector_at_rest
from atom.utils.exhausted import exhausted
from atom.utils.parent_watch import ParentLines, end_with_parent
from atom.utils.process_end import end_process

logger = logging.getLogger(__name__)


def main() -> int:
    end_with_parent()
    log_level = sys.argv[1]
    # They may come to the whole process group; ending in order is the server's business.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = ParentLines()
    config = Config.from_json(parent.next())
    order = msgspec.json.decode(parent.next(), type=CoreOrder)
    parent.follow()
    parallel = config.parallel
    name = "engine" if parallel.data_parallel_size == 1 else f"engine {parallel.data_parallel_rank}"
    logging.basicConfig(
        level=log_level, format=f"%(asctime)s %(levelname)s {name} %(name)s: %(message)s"
    )
    with zmq.Context() as context:
        try:
            sockets = CoreSockets(context, order.clients, parallel.data_parallel_rank)
        except zmq.ZMQError as error:  # the log is the only way to report to the server
            logger.error("%s", exhausted(error) or error)
            return 1
        try:
            return _serve(config, sockets, order.mesh)
        finally:
            sockets.close()


def _serve(config: Config, sockets: CoreSockets, mesh: MeshOrder | None) -> int:
    try:
        with collector_at_rest():
            from atom.model_engine.engine_core import EngineCore  # torch: failure can be reported
        core = EngineCore(config, sockets, mesh)
        core.start()
        core.run()
    except AtomError as error:
        sockets.send_all(ExecutorFailedBody(message=str(error), user_error=True))
        return 1
    except ClientLostError as error:
        logger.error("%s", error)
        sockets.send_all(ExecutorFailedBody(message=str(error), user_error=False))
        return 1
    except Exception as error:
        known = exhausted(error)
        if known is not None:
            logger.debug("the engine process ends", exc_info=True)
            sockets.send_all(ExecutorFailedBody(message=str(known), user_error=True))
            return 1
        logger.exception("the engine process failed")
        message = f"{type(error).__name__}: {error}"
        sockets.send_all(ExecutorFailedBody(message=message, user_error=False))
        return 1
    return 0


if __name__ == "__main__":
    end_process(main())
