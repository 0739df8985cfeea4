"""The page of flags: every command of `atom`, by its parser's groups."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from unittest.mock import patch

from atom.entrypoints.cli import build_parser
from tools.reference.markdown import code, codes, head, table

_HEAD = """
Every flag of every command. Flags are taken with dashes and with underscores. `atom serve --help`
is short, `--help=GROUP` and `--help=FLAG` say more, and `--config FILE` reads the same flags from
YAML. What other servers call them is [on another page](flags-of-other-servers.md).
"""
_COLUMNS = ("flag", "default", "meaning")


def page() -> str:
    # Some defaults are read from the environment; the page is the same for everybody.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("ATOM_")}
    with patch.dict(os.environ, ours, clear=True):
        parts = [head("Flags", _HEAD)]
        parts += [_command(parser) for parser in _commands(build_parser())]
    return "".join(parts)


def _commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers that have flags of their own, in order."""
    below = [
        each
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for each in action.choices.values()
    ]
    if not below:
        yield parser
    for each in below:
        yield from _commands(each)


def _command(parser: argparse.ArgumentParser) -> str:
    text = f"\n## {parser.prog}\n"
    for group in parser._action_groups:
        rows = [_row(action) for action in group._group_actions if _is_shown(action)]
        if rows:
            title = "Other" if group.title in ("options", "positional arguments") else group.title
            text += f"\n### {parser.prog}: {title}\n{table(_COLUMNS, rows)}"
    return text


def _is_shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)


def _row(action: argparse.Action) -> tuple[str, str, str]:
    names = codes(action.option_strings or [action.metavar or action.dest])
    if action.choices is not None:
        names += f" {codes(action.choices)}"
    elif isinstance(action.metavar, str) and action.option_strings:
        names += f" {action.metavar}"
    return names, _default(action), (action.help or "").replace("%%", "%")


def _default(action: argparse.Action) -> str:
    """The default, where it is a value; others are said by the text."""
    if isinstance(action.default, bool):
        return "on" if action.default else "off"
    if action.default in (None, argparse.SUPPRESS, "", [], {}) or "(default" in (action.help or ""):
        return ""
    return code(action.default)
