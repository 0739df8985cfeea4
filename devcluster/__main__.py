"""`python -m devcluster`: hands the arguments to the command line and exits with its code."""

import sys

try:
    from devcluster.cli import main

    sys.exit(main(sys.argv[1:]))
except KeyboardInterrupt:
    print(
        "\ndevcluster: interrupted; the same command continues, `down` cleans up", file=sys.stderr
    )
    sys.exit(130)
