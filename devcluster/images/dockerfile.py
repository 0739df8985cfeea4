"""Reads a Dockerfile as far as this tool needs: stages, their bases, and what they copy from the
context. Pure.

Used for the content hash of a build and by the tests of the project's own Dockerfiles. Heredocs are
refused: shell of more than a few lines belongs in a script that a checker can read.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError


@dataclass(frozen=True, slots=True)
class Instruction:
    """`flags` are the leading --name=value options; `text` is the rest."""

    line: int
    keyword: str
    flags: tuple[tuple[str, str], ...]
    text: str

    def flag(self, name: str) -> str | None:
        return dict(self.flags).get(name)


@dataclass(frozen=True, slots=True)
class Stage:
    name: str  # its alias, or its number as text
    base: str
    instructions: tuple[Instruction, ...]

    def needs(self) -> set[str]:
        """Names of stages or images that this one is built from."""
        copied = {i.flag("from") for i in self.instructions if i.keyword == "COPY"}
        mounted = {
            m
            for i in self.instructions
            for k, v in i.flags
            if k == "mount"
            for m in re.findall(r"from=([^,]+)", v)
        }
        return {self.base} | {name for name in copied if name} | mounted


@dataclass(frozen=True, slots=True)
class Dockerfile:
    arguments: tuple[str, ...]  # ARG texts before the first stage
    stages: tuple[Stage, ...]

    def stage(self, name: str) -> Stage | None:
        return next((stage for stage in self.stages if stage.name == name), None)

    def needed_stages(self, target: str | None) -> list[Stage]:
        """The target (the last stage by default) and all that it is built from, in file order."""
        start = self.stages[-1] if target is None else self.stage(target)
        if start is None:
            raise DevclusterError(
                f"the Dockerfile has no stage {target}; it has "
                f"{', '.join(s.name for s in self.stages)}"
            )
        wanted, open_names = {start.name}, [start]
        while open_names:
            for name in open_names.pop().needs():
                found = self.stage(name)
                if found is not None and found.name not in wanted:
                    wanted.add(found.name)
                    open_names.append(found)
        return [stage for stage in self.stages if stage.name in wanted]


def parse(text: str) -> Dockerfile:
    arguments: list[str] = []
    stages: list[tuple[str, str, list[Instruction]]] = []
    for instruction in _instructions(text):
        if instruction.keyword == "FROM":
            words = instruction.text.split()
            name = words[2] if len(words) == 3 and words[1].upper() == "AS" else str(len(stages))
            stages.append((name, words[0], []))
        elif stages:
            stages[-1][2].append(instruction)
        elif instruction.keyword == "ARG":
            arguments.append(instruction.text)
        else:
            raise DevclusterError(
                f"line {instruction.line} of the Dockerfile has {instruction.keyword} before the "
                "first FROM; move it below"
            )
    if not stages:
        raise DevclusterError("the Dockerfile has no FROM; start it with one")
    return Dockerfile(
        tuple(arguments), tuple(Stage(name, base, tuple(found)) for name, base, found in stages)
    )


def _instructions(text: str) -> Iterable[Instruction]:
    parts: list[str] = []
    first = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        first = first if parts else number
        parts.append(line.rstrip().removesuffix("\\"))
        if not line.rstrip().endswith("\\"):
            yield _instruction(first, " ".join(part.strip() for part in parts))
            parts = []


def _instruction(line: int, text: str) -> Instruction:
    keyword, _, rest = text.partition(" ")
    rest = rest.strip()
    flags = []
    while found := re.match(r"--([a-z-]+)(?:=(\S+))?\s+", rest):
        flags.append((found.group(1), found.group(2) or ""))
        rest = rest[found.end() :]
    if keyword.upper() in ("RUN", "COPY") and "<<" in rest:
        raise DevclusterError(
            f"line {line} of the Dockerfile has a heredoc; put it in a script and COPY that"
        )
    return Instruction(line, keyword.upper(), tuple(flags), rest)


def copied_sources(stages: Iterable[Stage]) -> list[str]:
    """Paths and patterns, relative to the context, that the stages copy from it."""
    found: list[str] = []
    for stage in stages:
        for instruction in stage.instructions:
            if instruction.keyword in ("COPY", "ADD") and instruction.flag("from") is None:
                words = (
                    json.loads(instruction.text)
                    if instruction.text.startswith("[")
                    else shlex.split(instruction.text)
                )
                found += [word for word in words[:-1] if "://" not in word]
            found += _mounted_sources(instruction)
    return list(dict.fromkeys(found))


def _mounted_sources(instruction: Instruction) -> list[str]:
    """Sources of `RUN --mount=type=bind,source=…` without a `from`."""
    found = []
    for name, value in instruction.flags:
        options = dict(part.partition("=")[::2] for part in value.split(","))
        if name == "mount" and options.get("type") == "bind" and "from" not in options:
            found.append(options.get("source") or options.get("src") or ".")
    return found


class IgnoreRules:
    """The rules of a .dockerignore: patterns of paths to leave out, `!` takes back, the last match
    wins."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        patterns = [line for line in lines if line and not line.startswith("#")]
        self._rules = [(_pattern(p.removeprefix("!")), not p.startswith("!")) for p in patterns]

    def ignores(self, path: str) -> bool:
        result = False
        for pattern, ignored in self._rules:
            if pattern.fullmatch(path):
                result = ignored
        return result


def _pattern(text: str) -> re.Pattern[str]:
    """A pattern also matches everything below what it names."""
    body = text.strip("/")
    out = ""
    while body:
        for token, regex in (("**/", "(?:.*/)?"), ("**", ".*"), ("*", "[^/]*"), ("?", "[^/]")):
            if body.startswith(token):
                out, body = out + regex, body[len(token) :]
                break
        else:
            out, body = out + re.escape(body[0]), body[1:]
    return re.compile(f"{out}(?:/.*)?")


def context_files(context: Path, sources: Iterable[str], rules: IgnoreRules) -> list[Path]:
    """Every file that the sources name, without the ignored ones, sorted. A source that names
    nothing is an error.
    """
    found: set[Path] = set()
    for source in sources:
        matches = sorted(context.glob(source.strip("/"))) if source.strip("./") else [context]
        if not matches:
            raise DevclusterError(
                f"the Dockerfile copies {source}, which is not in {context}; make it, or correct "
                "the COPY"
            )
        for match in matches:
            found.update(
                [match] if match.is_file() else (p for p in match.rglob("*") if p.is_file())
            )
    return sorted(p for p in found if not rules.ignores(p.relative_to(context).as_posix()))
