"""`python -m devcluster`: hands the arguments to the command line and exits with its code.

SIGTERM ends the tool like an exception does, so that the programs that it has started end too.
"""

import signal
import sys
from types import FrameType

TERMINATED = 143


def terminate(_: int, __: FrameType | None) -> None:
    sys.exit(TERMINATED)


signal.signal(signal.SIGTERM, terminate)
try:
    from devcluster.cli import main

    sys.exit(main(sys.argv[1:]))
except KeyboardInterrupt:
    print(
        "\ndevcluster: interrupted; the same command continues, `down` cleans up", file=sys.stderr
    )
    sys.exit(130)
