"""`python -m atom.entrypoints.openai_server --model DIR`: the same as `atom serve --model DIR`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from atom.entrypoints.cli import main as run_command


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(["serve", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())
