"""The program that a line or a container starts, and its words. Pure.

Forms: `vllm serve …`, `python -m vllm.entrypoints.openai.api_server …`,
`python -m sglang.launch_server …`, `sglang serve …`, `atom serve …`, each also behind variables,
`exec`, or in `sh -c "…"`; an image whose entrypoint is the server has flags alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from atom_operator.importing.results import Result, TranslationError, left
from atom_operator.importing.rules import At

_MODULES = (
    "vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server",
    "vllm.entrypoints.cli.main", "sglang.launch_server", "sglang.srt.server",
    "atom.entrypoints.openai_server", "atom.entrypoints.cli", "huggingfaceserver",
)  # fmt: skip
_PROGRAMS = ("vllm", "sglang", "atom")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash")
_ENDS = ("&&", ";", "||", "|", "&")
_SERVER_IMAGE = re.compile(r"(vllm|sglang)")


@dataclass(frozen=True, slots=True)
class ProgramLine:
    """A line that starts a server. words: behind the program; variables: set before it; beside:
    findings about the words that start something else."""

    words: tuple[At, ...]
    variables: tuple[At, ...] = ()
    beside: tuple[Result, ...] = ()


def program_line(words: Sequence[At], image: str = "") -> ProgramLine | None:
    """Find the server in a line; None if it starts another program. image: of the container, whose
    entrypoint may be the server."""
    line = list(_opened(words))
    for start in range(len(line)):
        length = _program(line[start:])
        if length:
            return _line_at(line, start, length)
    if all(word.text().startswith("-") for word in line[:1]) and _SERVER_IMAGE.search(image):
        return ProgramLine(tuple(line))
    return None


def split_line(text: str, where: str) -> list[At]:
    """Divide a text as a shell does. Raises `TranslationError` for a quotation without an end."""
    joined = re.sub(r"\\\r?\n", " ", text)
    try:
        lexer = shlex.shlex(joined, posix=True, punctuation_chars=False)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError as error:
        raise TranslationError(f"{where}: a quotation of the line has no end; close it") from error
    return [At(where, word) for word in words]


def _opened(words: Sequence[At]) -> Iterator[At]:
    """Yield the words, those of a shell's script divided."""
    texts = [word.text() for word in words]
    if len(texts) > 1 and texts[0] in _SHELLS:
        for word in words[1:]:
            text = word.text()
            if not text.startswith("-"):
                yield from split_line(text.replace("\n", " ; "), word.where)
        return
    yield from words


def _program(line: Sequence[At]) -> int:
    """Return how many words name a server at the beginning of a line; 0 if none do."""
    first, *rest = (word.text() for word in line[:3])
    name = first.rpartition("/")[2]
    if name in _PROGRAMS and rest[:1] == ["serve"]:
        return 2
    if name.startswith("python") and len(rest) == 2 and rest[0] == "-m" and rest[1] in _MODULES:
        return 4 if [word.text() for word in line[3:4]] == ["serve"] else 3
    return 0


def _line_at(line: Sequence[At], start: int, length: int) -> ProgramLine:
    end = next(
        (
            index
            for index in range(start + length, len(line))
            if line[index].text() in _ENDS or line[index].text().endswith(";")
        ),
        len(line),
    )
    before = [word for word in line[:start] if word.text() not in ("exec", "env", *_ENDS)]
    variables = [word for word in before if _ASSIGNMENT.fullmatch(word.text())]
    others = [word for word in before if word not in variables]
    others += [word for word in line[end:] if word.text() not in _ENDS]
    beside = [
        left(each.where, "other commands of the line have no counterpart") for each in others[:1]
    ]
    return ProgramLine(tuple(line[start + length : end]), tuple(variables), tuple(beside))
