"""Refuse docstrings that cannot be read alone: those that begin with `The same`, or say `nobody`,
`whoever` or `somebody` where a caller, a process or a user has a name. Run by `make lint`; tests,
which tell of scenes, may say so."""

from __future__ import annotations

import ast
import re
import sys

from tools.check_file_size import ROOT, python_files

_NAMELESS = re.compile(r"\b(nobody|whoever|somebody)\b", re.IGNORECASE)
_QUOTED = re.compile(r"`[^`]*`")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def unclear(path: str, source: str) -> list[str]:
    """Write a sentence per fault in a file's docstrings."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node, clean=False)):
            first_line = node.body[0].lineno
            found += [f"{path}:{first_line + line}: {what}" for line, what in _faults(text)]
    return found


def _faults(text: str) -> list[tuple[int, str]]:
    """Find (line from the docstring's first, what is wrong and how to mend it)."""
    found = []
    if re.match(r"\s*The same\b", text):
        found.append((0, 'docstring begins with "The same"; say what, with a verb and its object'))
    spoken = _QUOTED.sub(lambda quoted: re.sub(r"[^\n]", " ", quoted[0]), text)
    for word in _NAMELESS.finditer(spoken):
        remedy = "name the caller, process or user that is meant"
        found.append((spoken.count("\n", 0, word.start()), f'docstring says "{word[0]}"; {remedy}'))
    return found


def main() -> int:
    problems = []
    for path in python_files():
        if not path.startswith("tests/"):
            problems += unclear(path, (ROOT / path).read_text(encoding="utf-8"))
    print("\n".join(problems) or "docstrings: fine")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
