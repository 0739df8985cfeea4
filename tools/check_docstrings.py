"""Refuse docstrings that cannot be read alone. Run by `make lint`; tests, which tell of scenes, may
say what they like.

A function's or a class's docstring is a fragment where its first sentence begins with

- a preposition, a conjunction, a pronoun or an auxiliary ("Of those that …", "Until it has ended");
- `Whether`, `What`, `How` and the like, which make a clause and no sentence; or
- a lower-case word, a shape or a number ("name: of …", "x [T, H] → …", "0 when …"), but for a name
  in backquotes. A constructor may begin with its parameters, since its class says what it is.

The share of fragments among all docstrings is printed. So are refused `The same`, and `nobody`,
`whoever` or `somebody` where a caller, a process or a user has a name.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.check_file_size import ROOT, python_files
from tools.remembered import per_file

# Where fragments are still counted, and not refused: notation of kernels, and descriptions of CRDs,
# which stand behind their field's name.
TOLERATED = (
    "engine/atom/model_ops/backends/triton_ops/",
    "operator/atom_operator/api/",
)
MOST_FRAGMENTS_PERCENT = 5.0

_PREPOSITIONS = (
    "about above across after against among as at before behind below beside besides between "
    "beyond by for from in into like of on over past per since through to under until upon with "
    "within without"
)
_PRONOUNS = "another's both its neither none others' such that their these this those"
_CONJUNCTIONS = "because but if once only or so than then unless whatever"
_QUESTIONS = "how what when where whether which who whom whose why"
_AUXILIARIES = "are belongs has have is knows was were"
_STARTERS = frozenset(
    " ".join((_PREPOSITIONS, _PRONOUNS, _CONJUNCTIONS, _QUESTIONS, _AUXILIARIES)).split()
)
_NAMELESS = re.compile(r"\b(nobody|whoever|somebody)\b", re.IGNORECASE)
_QUOTED = re.compile(r"`[^`]*`")
_Documented = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def unclear(path: str, source: str) -> list[str]:
    """Write a sentence per fault in a file's docstrings."""
    found = []
    for node, text in _docstrings(source):
        first_line = node.body[0].lineno
        found += [f"{path}:{first_line + line}: {what}" for line, what in _faults(text)]
        if not path.startswith(TOLERATED) and is_fragment(node, text):
            found.append(
                f'{path}:{first_line}: docstring begins with "{text.split()[0]}", and cannot be '
                f"read alone; begin with a verb and its object, or with what the class is"
            )
    return found


def is_fragment(node: ast.Module | _Documented, text: str) -> bool:
    """Tell whether a docstring begins with a fragment, as this module's head defines it."""
    if isinstance(node, ast.Module) or not text.strip():
        return False
    first = text.split()[0]
    if first.lower().rstrip(".,:;") in _STARTERS:
        return True
    return not (first[0].isupper() or first[0] == "`" or node.name == "__init__")


def fragment_share(sources: list[str]) -> tuple[int, int]:
    """Count fragments, and all docstrings of functions and classes."""
    found = [
        is_fragment(node, text)
        for source in sources
        for node, text in _docstrings(source)
        if not isinstance(node, ast.Module)
    ]
    return sum(found), len(found)


def _docstrings(source: str) -> Iterator[tuple[ast.Module | _Documented, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | _Documented):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield node, text


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
    texts = {
        path: (ROOT / path).read_text(encoding="utf-8")
        for path in python_files()
        if not path.startswith("tests/")
    }
    judged = per_file(
        Path(__file__), texts, lambda path, text: [unclear(path, text), *fragment_share([text])]
    )
    problems = [problem for found, _, _ in judged.values() for problem in found]
    fragments = sum(count for _, count, _ in judged.values())
    all_of_them = sum(count for _, _, count in judged.values())
    share = f"{fragments} of {all_of_them} docstrings are fragments"
    percent = 100 * fragments / all_of_them
    if percent > MOST_FRAGMENTS_PERCENT:
        problems.append(f"{share}: {percent:.1f} %, at most {MOST_FRAGMENTS_PERCENT:.0f} %")
    print("\n".join(problems) or f"docstrings: fine ({share}: {percent:.1f} %)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
