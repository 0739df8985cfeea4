"""Output of a command: lines within the terminal's width, JSON, or YAML.

Width is the terminal's, or COLUMNS if that is set; output to a file or a pipe is not wrapped. Knows
nothing of the content. Called by every command.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

FORMATS = ("text", "json", "yaml")
_LEAST_WIDTH = 20
# Branches of a tree, marks and a label with two spaces after it: the text follows.
_STEM = re.compile(r"[│├└─ ]*")
_LABEL = re.compile(r"(?:[-+?] )?\S+(?: \S+)*?\s{2,}|[-+?] |\d+\. ")


def width() -> int | None:
    """Return the columns of a line at most; None if lines may be as long as they are."""
    if not os.environ.get("COLUMNS", "").isdigit() and not sys.stdout.isatty():
        return None
    return max(_LEAST_WIDTH, shutil.get_terminal_size().columns)


def show(lines: Iterable[str]) -> None:
    """Print lines for people."""
    columns = width()
    for line in lines:
        for part in wrapped(line, columns):
            print(part)


def show_document(document: Any, output: str) -> None:
    """Print an answer for programs."""
    if output == "yaml":
        plain = json.loads(json.dumps(document))  # YAML's safe writer knows no enumerations
        print(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), end="")
    else:
        print(json.dumps(document, indent=2, ensure_ascii=False))


def wrapped(line: str, columns: int | None) -> Iterator[str]:
    """Split a line into parts of at most `columns` columns; a tree's stems continue, text is
    indented below its beginning."""
    if columns is None or len(line) <= columns:
        yield line
        return
    stem = _STEM.match(line)
    assert stem is not None
    rest = line[stem.end() :]
    label = _LABEL.match(rest)
    hang = len(label.group(0)) if label else 2
    going_on = stem.group(0).replace("├─", "│ ").replace("└─", "  ")
    indent = going_on + " " * hang
    if len(indent) > columns // 2:
        indent = going_on[: columns // 4] + "  "
    yield from textwrap.wrap(
        line,
        columns,
        subsequent_indent=indent,
        drop_whitespace=True,
        break_long_words=True,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
