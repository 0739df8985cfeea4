"""`python -m atom_operator`, also installed as `atom-operator`: flags, settings, then the process.

Two commands run no operator: `plan` prints the operator's decision for files, `check` tests an
installed one.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import os
import sys
from collections.abc import Sequence

from atom.sizing.options.hinting_parser import HintingParser
from atom_operator import constants
from atom_operator.installation import tell_missing, version_line
from atom_operator.settings import PREFIX, OperatorSettings, SettingsError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal ends it; 2 for a wrong setting or a package that is not installed."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:  # without the packages that commands need
        print(version_line("atom-operator"))
        return 0
    try:
        return _command(words)
    except ModuleNotFoundError as error:
        return tell_missing(error, "atom-operator")


def _command(words: Sequence[str]) -> int:
    options = _parser().parse_args(words)
    if options.command == "plan":
        from atom_operator import plan_command

        return plan_command.run(options)
    try:
        settings = OperatorSettings.from_env(os.environ)
    except SettingsError as error:
        print(f"atom-operator: {error}", file=sys.stderr)
        return 2
    if options.namespace:
        settings = dataclasses.replace(settings, namespaces=tuple(options.namespace))
    if options.command == "check":
        from atom_operator import check_command

        return check_command.run(options, settings)
    _run(settings)
    return 0


def _parser() -> argparse.ArgumentParser:
    from atom_operator import check_command, plan_command

    parser = HintingParser(
        prog="atom-operator",
        description=f"Reconciles {constants.KIND}s ({constants.API_VERSION}) into engine pods.",
        epilog=f"Settings come from the environment ({PREFIX}*); see the chart's values.",
    )
    parser.add_argument("--version", action="version", version=version_line("atom-operator"))
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
    # kopf and the client take a while to import, and the other commands need neither.
    from atom_operator.handlers import lifecycle
    from atom_operator.handlers.runtime import Runtime

    logging.basicConfig(
        level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # At INFO it logs every probe.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    # kopf warns that it handles no signals in its thread, as it should not.
    logging.getLogger("kopf").setLevel(logging.ERROR)
    asyncio.run(lifecycle.run(Runtime(settings)))


if __name__ == "__main__":
    sys.exit(main())
