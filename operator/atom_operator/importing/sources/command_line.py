"""A line that starts a server: `vllm serve …`, `python -m sglang.launch_server …`, `atom serve …`.

A file may hold several lines, each of another deployment, with comments and continued lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from atom_operator.importing.engine_line import LineContext, line_results
from atom_operator.importing.objects import valid_name
from atom_operator.importing.program_line import ProgramLine, program_line, split_line
from atom_operator.importing.results import Imported, Result, Setting
from atom_operator.importing.rules import At
from atom_operator.importing.variables import variable

KIND = "line"
_NAMES = re.compile(r"\b(vllm|sglang|atom)\b")
_YAML = re.compile(r"(- |[\w.\"'-]+:(\s|$)|[\[{])")


def has_program(text: str) -> bool:
    """Return whether a text has a line that starts a server."""
    return any(_found(line, "line") is not None for line in _lines(text))


def deployments(text: str, where: str) -> Iterator[Imported]:
    """Translate each line that starts a server."""
    for number, line in enumerate(_lines(text), 1):
        found = _found(line, f"line {number}")
        if found is not None:
            yield _imported(found, number, where)


def _lines(text: str) -> Iterator[str]:
    joined = re.sub(r"\\\r?\n", " ", text)
    for line in joined.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip().removeprefix("$ ")


def _found(line: str, where: str) -> ProgramLine | None:
    # A line of YAML that names a program is not the line that starts it.
    if not _NAMES.search(line) or _YAML.match(line):
        return None
    words = split_line(line, where)
    numbered = [At(f"{where}, word {index}", each.text()) for index, each in enumerate(words, 1)]
    return program_line(numbered) if numbered else None


def _imported(found: ProgramLine, number: int, where: str) -> Imported:
    results: list[Result] = [*found.beside]
    unnamed = LineContext("model")
    names = [
        str(each.value).rstrip("/").rpartition("/")[2]
        for each in line_results(found.words, unnamed)
        if isinstance(each, Setting) and each.path in ("model.source", "model.servedName")
    ]
    name = valid_name(names[-1]) if names else "model"
    context = LineContext(name)
    for word in found.variables:
        key, _, value = word.text().partition("=")
        results += variable(key, At(f"{word.where}[{key}]", value), context)
    results += line_results(found.words, context)
    return Imported(name, None, KIND, f"{number} of {where}", results)
