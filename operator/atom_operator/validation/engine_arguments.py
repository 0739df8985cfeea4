"""Read spec.engine.extraArgs by the command line of this version's engine. Pure.

A finding is a warning and no refusal: an image of another version may have other flags. For the
same reason one word that this version does not know hides no other. The engine's flags are
torch-free; they are loaded for the first spec with arguments.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, NoReturn

from atom.sizing.options.flag_values import is_flag
from atom.sizing.options.option import Option
from atom.sizing.options.table import OPTIONS
from atom_operator.api.v1alpha1 import AtomDeploymentSpec

_FIELD = "spec.engine.extraArgs"
# The words of these are read from files of the pod, which the operator has not.
_OF_FILES = ("--config", "--fairness-weights", "--allowed-local-media-path", "--help")
_MOST_KNOWN = 256  # lists of arguments


class ArgumentError(Exception):
    """The engine would end at once; the message holds its own words."""


def argument_warnings(
    spec: AtomDeploymentSpec, line: Callable[[], Sequence[str]]
) -> tuple[str, ...]:
    """Return the error with which this version's engine would refuse the arguments, by themselves
    or beside the others; empty if it takes them, or if the spec names an image. line: returns the
    complete command line of a pod, with the values of its variables."""
    given = spec.engine.extra_args or ()
    names = {own_flag(word) for word in given}
    if not given or spec.engine.image is not None or names.intersection(_OF_FILES):
        return ()
    try:
        refusal = _refusal_of(engine_parser().parse_args([*line()]))
    except ArgumentError as error:
        refusal = str(error)
    if refusal is None:
        return ()
    return (f"{_FIELD}: the engine of this version ends at once: {refusal}",)


def own_flag(word: str) -> str:
    """Return the flag of a word without its value, in the engine's own spelling: --max-num-seqs of
    --max_running_requests=8. A flag that this version does not know stays as it is."""
    if not is_flag(word):
        return word
    from atom.entrypoints.flags.flag_row import FlagVerdict
    from atom.entrypoints.flags.other_flags import ROW_OF

    flag = word.partition("=")[0].replace("_", "-")
    row = ROW_OF.get(flag)
    if row is not None and row.verdict is FlagVerdict.SAME:
        flag = row.note
    if flag.startswith("--"):
        return flag
    # argparse takes the beginning of a flag with one dash for the flag.
    meant = {each.flag_name for each in OPTIONS if (each.flag.short or "").startswith(flag)}
    return meant.pop() if len(meant) == 1 else flag


def options_given(part: type, arguments: tuple[str, ...]) -> dict[str, Any]:
    """Return the options of a part that no field of a spec sets, by attribute, with the values that
    the arguments give or else their defaults; empty without arguments."""
    if not arguments:
        return {}
    from atom.entrypoints.flags.engine_args import part_from_args

    found: Any = part_from_args(part, _read(arguments))
    return {each.attribute: getattr(found, each.attribute) for each in _beside_fields(part)}


def _beside_fields(part: type) -> tuple[Option, ...]:
    return tuple(each for each in OPTIONS if each.part is part and each.crd is None)


@lru_cache(maxsize=_MOST_KNOWN)
def _read(arguments: tuple[str, ...]) -> argparse.Namespace:
    """Parse the arguments, without those that this version's engine refuses."""
    taken = [word for group in _by_flag(arguments) if _is_taken(group) for word in group]
    return _parsed(taken)


def _by_flag(arguments: Sequence[str]) -> list[list[str]]:
    """Return the words of each flag: the flag itself, and the values that follow it."""
    groups: list[list[str]] = []
    for word in arguments:
        if is_flag(word):
            groups.append([])
        if groups:
            groups[-1].append(word)
    return groups


def _is_taken(words: Sequence[str]) -> bool:
    if own_flag(words[0]) in _OF_FILES:
        return False
    try:
        _parsed(words)
    except ArgumentError:
        return False
    return True


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    return engine_parser().parse_args(["--model", "any", *words])


def _refusal_of(args: argparse.Namespace) -> str | None:
    from atom.entrypoints.flags.engine_args import refusal_of

    return refusal_of(args)


@cache
def engine_parser() -> argparse.ArgumentParser:
    """Return the parser of this version's `atom serve`, which raises `ArgumentError`."""
    from atom.entrypoints.flags.flag_parser import FlagParser
    from atom.entrypoints.serve import add_serve_arguments
    from atom.entrypoints.server_args import add_log_level

    class Parser(FlagParser):
        """A parser that raises where the engine's prints its words and ends."""

        def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
            raise ArgumentError("; ".join(_said(message or f"exit {status}")))

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
