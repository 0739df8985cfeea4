"""The engine process: `python -m atom.model_engine.core_main INPUT OUTPUT IDENTITY`.

Started by CoreManager only. The configuration comes as one JSON line on standard input, which then
stays open as a lifeline: when it closes, the server is gone, and so is this process at once.
A plain command instead of `multiprocessing`: no pickle, and the caller's main module is not run
again.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading

import zmq

from atom.config import Config
from atom.errors import AtomError
from atom.model_engine.engine_protocol import ExecutorFailedBody, encode

logger = logging.getLogger(__name__)

LINGER_MS = 2000  # how long a last message may take to leave


def main() -> int:
    input_address, output_address, identity = sys.argv[1:4]
    log_level = sys.argv[4] if len(sys.argv) > 4 else "INFO"
    logging.basicConfig(
        level=log_level, format="%(asctime)s %(levelname)s engine %(name)s: %(message)s"
    )
    # Ctrl-C reaches the whole process group; ending in order is the server's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = Config.from_json(sys.stdin.buffer.readline())
    threading.Thread(target=_exit_with_parent, name="lifeline", daemon=True).start()
    with zmq.Context() as context:
        inbox = context.socket(zmq.DEALER)
        inbox.setsockopt(zmq.IDENTITY, identity.encode())
        inbox.connect(input_address)
        outbox = context.socket(zmq.PUSH)
        outbox.setsockopt(zmq.SNDHWM, 0)  # the manager always reads; never block a step
        outbox.connect(output_address)
        try:
            return _serve(config, inbox, outbox)
        finally:
            inbox.close(linger=0)
            outbox.close(linger=LINGER_MS)


def _serve(config: Config, inbox: zmq.Socket[bytes], outbox: zmq.Socket[bytes]) -> int:
    from atom.model_engine.engine_core import EngineCore  # torch: only once we can report failure

    try:
        core = EngineCore(config, inbox, outbox)
        core.start()
        core.run()
    except AtomError as error:
        outbox.send_multipart(encode(ExecutorFailedBody(message=str(error), user_error=True)))
        return 1
    except Exception as error:
        logger.exception("the engine process failed")
        message = f"{type(error).__name__}: {error}"
        outbox.send_multipart(encode(ExecutorFailedBody(message=message, user_error=False)))
        return 1
    return 0


def _exit_with_parent() -> None:
    # Raw reads: a buffered reader would hold a lock that interpreter shutdown waits for.
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
