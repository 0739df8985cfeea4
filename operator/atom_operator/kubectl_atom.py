"""`kubectl atom`: the plug-in that kubectl finds as `kubectl-atom` in the PATH."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from atom_operator import plan_command
from atom_operator.plugin.commands import add_commands, add_global_flags
from atom_operator.plugin.kubectl import Kubectl, KubectlError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    options = _parser().parse_args(arguments)
    if options.command == "plan":
        return plan_command.run(options)
    flags = [
        f"--{name}={value}"
        for name in ("context", "kubeconfig")
        if (value := getattr(options, name, None)) is not None
    ]
    try:
        kubectl = Kubectl(tuple(flags), getattr(options, "namespace", None))
        if kubectl.namespace is None:
            kubectl = Kubectl(tuple(flags), kubectl.current_namespace())
        return int(options.run(kubectl, options))
    except KubectlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kubectl atom", description="AtomDeployments, for the people who run them."
    )
    add_global_flags(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    plan = commands.add_parser(
        "plan", help="print what the operator would decide about a manifest, without a cluster"
    )
    plan_command.add_arguments(plan)
    add_commands(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
