"""Check spec.engine.extraArgs by the command line of this version's engine. Pure.

A finding is a warning and no refusal: an image of another version may have other flags. The
engine's flags are torch-free; they are loaded for the first spec with arguments.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache
from typing import Any, NoReturn

from atom_operator.api.v1alpha1 import AtomDeploymentSpec

_FIELD = "spec.engine.extraArgs"
# The words of these are read from a file of the pod, which the operator has not.
_OF_FILES = ("--config", "--help")


class _ArgumentError(Exception):
    """The engine would end at once; the message holds its own words."""


def argument_warnings(spec: AtomDeploymentSpec) -> tuple[str, ...]:
    """Return the error with which this version's engine would refuse the arguments; empty if it
    takes them, or if the spec names an image."""
    given = spec.engine.extra_args or ()
    names = {word.partition("=")[0].replace("_", "-") for word in given}
    if not given or spec.engine.image is not None or names.intersection(_OF_FILES):
        return ()
    try:
        _parser().parse_args(["--model", "model", *given])
    except _ArgumentError as error:
        return (f"{_FIELD}: the engine of this version ends at once: {error}",)
    return ()


@cache
def _parser() -> argparse.ArgumentParser:
    from atom.entrypoints.flags.flag_parser import FlagParser
    from atom.entrypoints.serve import add_serve_arguments
    from atom.entrypoints.server_args import add_log_level

    class Parser(FlagParser):
        """A parser that raises where the engine's prints its words and ends."""

        def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
            raise _ArgumentError("; ".join(_said(message or f"exit {status}")))

        def _print_message(self, message: str, file: Any = None) -> None:
            """Print nothing: no one reads the operator's standard output."""

    parser = Parser(prog="atom serve")
    add_serve_arguments(parser)
    add_log_level(parser, "info")
    return parser


def _said(message: str) -> Iterator[str]:
    """Yield the lines of an error without the hint at --help."""
    for line in message.splitlines():
        if line and not line.startswith("Try "):
            yield line.strip().removeprefix("error: ")
