"""`kubectl atom`: the plug-in that kubectl finds as `kubectl-atom` in the PATH."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from atom_operator import plan_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    parser = argparse.ArgumentParser(
        prog="kubectl atom", description="AtomDeployments, for the people who run them."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    plan = commands.add_parser(
        "plan", help="print what the operator would decide about a manifest, without a cluster"
    )
    plan_command.add_arguments(plan)
    return plan_command.run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
