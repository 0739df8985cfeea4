"""HintingParser: argparse whose errors are for people.

A misspelt flag or word is told with the one that was meant, out of the flags of the command that
was typed. Every unknown flag of a line is told at once. Values are read as people write them, and
no error names a function. Knows no flag.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from atom.sizing.options.flag_values import is_flag, number, whole_number
from atom.sizing.options.nearest import nearest

_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)", re.DOTALL)
# Of choices that have the other word.
_OTHER_WORDS = {
    "warn": "warning", "critical": "error", "fatal": "error", "trace": "debug",
    "amd": "rocm", "hip": "rocm", "nvidia": "cuda",
}  # fmt: skip


class HintingParser(argparse.ArgumentParser):
    """Parse a line; an error has a line with a remedy for each misspelt flag."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take the arguments of ArgumentParser. Flags are not guessed from their beginning unless
        `allow_abbrev` is set."""
        options.setdefault("allow_abbrev", False)
        super().__init__(*args, **options)
        self.register("type", int, whole_number)
        self.register("type", float, number)
        self.line: Sequence[str] = ()

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse a line. A command without commands below it ends the program at a word that it does
        not know; else the command above would judge the word by its own flags."""
        self.line = list(sys.argv[1:] if args is None else args)
        found, rest = super().parse_known_args(self.line, namespace)
        if rest and self._subparsers is None:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest

    def error(self, message: str) -> NoReturn:
        lines = [f"error: {message}", *self._hints(message)]
        self.exit(2, "\n".join(lines) + f"\nTry '{self.prog} --help'.\n")

    def flags_beside(self) -> Iterable[str]:
        """Return the flags that a line of this command may have beside the parser's own."""
        return ()

    def _hints(self, message: str) -> Iterator[str]:
        for name in self._unknown_flags():
            near = self._meant(name)
            if near:
                yield f"  {name}: did you mean {' or '.join(near)}?"
        choice = _CHOICE.search(message)
        if choice is not None:
            near = nearest(choice[1], [each.strip("' ") for each in choice[2].split(",")])
            if near:
                yield f"  did you mean {' or '.join(near)}?"

    def _unknown_flags(self) -> Iterator[str]:
        """Yield the names in the line that are no flags; of a command with commands below it, those
        before the first word."""
        known = self._option_string_actions
        for word in self.line:
            name = word.partition("=")[0]
            if word == "--" or (self._subparsers is not None and not word.startswith("-")):
                return
            if not is_flag(name) or name == "-":
                continue
            attached = not name.startswith("--") and name[:2] in known  # -n5
            if name not in known and not attached:
                yield name

    def _meant(self, name: str) -> list[str]:
        """Return the flags that a name may have been meant to be."""
        flags = [*self._option_string_actions, *self.flags_beside()]
        if len(name) > 2:
            same = [each for each in flags if each.startswith("--") == name.startswith("--")]
            near = nearest(name, same) or nearest(f"--{name.lstrip('-')}", flags)
            own = [each for each in near if each in self._option_string_actions]
            return own or near
        begun = [each for each in self._option_string_actions if each.startswith(f"-{name}")]
        shortest = min(begun, key=len, default=None)
        return [] if shortest is None else [shortest]

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        return super()._get_values(action, [_as_choice(action, each) for each in arg_strings])

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            if isinstance(error.__context__, argparse.ArgumentTypeError):
                raise
            told = f"{arg_string!r} is no value of it; {action.help or 'see --help'}"
            raise argparse.ArgumentError(action, told) from None


def _as_choice(action: argparse.Action, text: str) -> str:
    """Return the choice that a word stands for, in any case; the word itself if there is none."""
    choices = action.choices
    if choices is None or text in choices or isinstance(action, argparse._SubParsersAction):
        return text
    lower = text.lower()
    by_lower = {str(each).lower(): str(each) for each in choices}
    return by_lower.get(lower) or by_lower.get(_OTHER_WORDS.get(lower, "")) or text
