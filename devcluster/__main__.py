"""`python -m devcluster`: hands the arguments to the command line and exits with its code."""

import sys

from devcluster.cli import main

sys.exit(main(sys.argv[1:]))
