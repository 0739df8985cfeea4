"""`python -m atom_operator`, also installed as `atom-operator`: flags, settings, then kopf.

Two commands run nothing: `plan` prints what the operator would decide, `check` whether an installed
one works.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any, cast

import kopf

from atom_operator import check_command, constants, plan_command
from atom_operator.settings import PREFIX, OperatorSettings, SettingsError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal ends it; 2 for a wrong setting."""
    options = _parser().parse_args(arguments)
    if options.command == "plan":
        return plan_command.run(options)
    try:
        settings = OperatorSettings.from_env(os.environ)
    except SettingsError as error:
        print(f"atom-operator: {error}", file=sys.stderr)
        return 2
    if options.namespace:
        settings = dataclasses.replace(settings, namespaces=tuple(options.namespace))
    if options.command == "check":
        return check_command.run(options, settings)
    _run(settings)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="atom-operator",
        description=f"Reconciles {constants.KIND}s ({constants.API_VERSION}) into engine pods.",
        epilog=f"Settings come from the environment ({PREFIX}*); see the chart's values.",
    )
    parser.add_argument(
        "--namespace",
        action="append",
        metavar="NAME",
        help="watch this namespace only (may be repeated); default: the whole cluster",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    plan = commands.add_parser("plan", help="print the plan of a manifest, without a cluster")
    plan_command.add_arguments(plan)
    check = commands.add_parser("check", help="ask whether the installed operator works")
    check_command.add_arguments(check)
    return parser


def _run(settings: OperatorSettings) -> None:
    # Importing the handlers registers them with kopf, and creates API resource classes.
    from atom_operator.handlers import lifecycle  # noqa: F401
    from atom_operator.handlers.runtime import Runtime

    logging.basicConfig(
        level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # At INFO these log every request, event and probe.
    for noisy in ("kopf.objects", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    kopf.run(
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
        standalone=True,
        # Otherwise kopf asks for the user's name, and a container's numeric user has none.
        identity=cast("Any", socket.gethostname()),
        memo=Runtime(settings),
    )


if __name__ == "__main__":
    sys.exit(main())
