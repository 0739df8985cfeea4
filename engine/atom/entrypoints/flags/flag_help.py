"""Help of a command with very many flags: a short page, pages by group or flag, and all of it.

atom serve --help            what is needed most, and the groups
atom serve --help=server     one group; a flag or a part of its name does as well
atom serve --help=all
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_METAVARS: dict[Any, str] = {int: "N", float: "NUMBER", Path: "FILE", None: "TEXT"}
_WIDTH = 96


class Help(argparse.HelpFormatter):
    """Print the kind of a flag's value, and its default if that is informative."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        silent = action.default in (None, False, argparse.SUPPRESS) or action.default == []
        return text if silent or "(default" in text else f"{text} (default: %(default)s)"

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return _METAVARS.get(action.type, "VALUE")


def page_of(parser: argparse.ArgumentParser, asked: str) -> str | None:
    """The help of a group by its title, or of the flags with this in their names; None when there
    are none."""
    groups = [group for group in parser._action_groups if group._group_actions]
    for group in groups:
        if asked.lower() in _names_of(group.title or ""):
            return _section(parser, group.title or "", group._group_actions)
    word = asked.lower().strip("-").replace("_", "-")
    found = [
        action
        for group in groups
        for action in group._group_actions
        if any(word in option for option in action.option_strings)
    ]
    exact = [action for action in found if f"--{word}" in action.option_strings]
    chosen = exact or found
    return _section(parser, f"flags with {word!r}", chosen) if chosen else None


def short_page(
    parser: argparse.ArgumentParser, examples: Sequence[str], most_used: Sequence[str]
) -> str:
    actions = [_action(parser, flag) for flag in most_used]
    groups = [group for group in parser._action_groups if _is_ours(group)]
    lines = [f"usage: {parser.prog} MODEL [FLAG ...]", ""]
    if parser.description:
        lines += [*textwrap.wrap(parser.description, _WIDTH), ""]
    lines += ["examples:", *(f"  {line}" for line in examples), ""]
    text = "\n".join(lines) + "\n" + _section(parser, "most used", actions)
    text += f"\nmore, by group ({parser.prog} --help=GROUP, --help=FLAG or --help=all):\n"
    for group in groups:
        names = [action.option_strings[0] for action in group._group_actions]
        few = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        text += f"  {_names_of(group.title or '')[0]:<14} {few}\n"
    return text


def _names_of(title: str) -> list[str]:
    """Return the names by which a group can be requested: its title, or the title's first word."""
    return [title.lower().split()[0], title.lower()] if title else []


def _is_ours(group: Any) -> bool:
    return bool(group._group_actions) and group.title not in ("options", "positional arguments")


def _action(parser: argparse.ArgumentParser, flag: str) -> argparse.Action:
    return next(action for action in parser._actions if flag in action.option_strings)


def _section(
    parser: argparse.ArgumentParser, title: str, actions: Sequence[argparse.Action]
) -> str:
    formatter = parser._get_formatter()
    formatter.start_section(title)
    formatter.add_arguments(actions)
    formatter.end_section()
    return formatter.format_help()
