"""Reads the text that the demo model learns: question files, conversations and documentation.

The question files (questions/*.md) are meant for people: a second-level heading opens an entry,
its list items are ways to ask, the paragraph after them is the answer. An item `define: TERM`
stands for all the usual ways to ask what TERM is. conversations.md holds dialogues of several
turns, one `User:` or `Assistant:` line each. What stands in braces is a fact (facts.py). Knows
nothing of tokens or of training. A malformed entry is an error that names file and line.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from tools.demo_model.facts import Fact, FactError, fill

DEFINE = "define: "


class CorpusError(Exception):
    """A file of the corpus cannot be read as what it should be."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer and the ways to ask for it; `terms` are asked for in every usual way."""

    topic: str
    questions: tuple[str, ...]
    terms: tuple[str, ...]
    answer: str


@dataclass(frozen=True, slots=True)
class Turn:
    role: str  # "system", "user" or "assistant"
    content: str


@dataclass(frozen=True, slots=True)
class Corpus:
    entries: tuple[Entry, ...]
    conversations: tuple[tuple[Turn, ...], ...]
    documents: tuple[str, ...]  # paragraphs of the documentation, in reading order


def parse_entries(text: str, name: str) -> tuple[Entry, ...]:
    """The entries of one question file; `name` is for error messages."""
    entries: list[Entry] = []
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    line = sections[0].count("\n") + 1
    for section in sections[1:]:
        heading, _, body = section.partition("\n")
        items = re.findall(r"^- (.+)$", body, flags=re.MULTILINE)
        prose = [row.strip() for row in body.splitlines() if row.strip() and row[:2] != "- "]
        if not items or not prose:
            raise CorpusError(
                f"{name}:{line}: entry {heading!r} needs at least one '- question' line and "
                "an answer after them"
            )
        terms = tuple(item.removeprefix(DEFINE) for item in items if item.startswith(DEFINE))
        questions = tuple(item for item in items if not item.startswith(DEFINE))
        entries.append(Entry(heading.strip(), questions, terms, " ".join(prose)))
        line += section.count("\n")
    return tuple(entries)


def parse_conversations(text: str, name: str) -> tuple[tuple[Turn, ...], ...]:
    """The dialogues of one file: blank lines part them, `User:` and `Assistant:` open turns."""
    dialogues: list[tuple[Turn, ...]] = []
    for block in re.split(r"\n\s*\n", text):
        rows = [row for row in block.splitlines() if row and not row.startswith("#")]
        turns: list[Turn] = []
        for row in rows:
            role, colon, content = row.partition(": ")
            expected = "assistant" if len(turns) % 2 else "user"
            if not colon or role.lower() != expected:
                raise CorpusError(f"{name}: expected a line of {expected.title()}, found: {row!r}")
            turns.append(Turn(expected, content.strip()))
        if len(turns) % 2:
            raise CorpusError(
                f"{name}: the dialogue of {turns[0].content!r} ends without an answer"
            )
        if turns:
            dialogues.append(tuple(turns))
    return tuple(dialogues)


def read_documents(root: Path) -> tuple[str, ...]:
    """Paragraphs of README.md and docs/**/*.md, without tables, pictures and code."""
    paragraphs: list[str] = []
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        if not path.is_file():
            continue
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for paragraph in re.split(r"\n\s*\n", text):
            plain = " ".join(paragraph.split())
            if len(plain) >= 40 and plain[0] not in "|<!":
                paragraphs.append(plain)
    return tuple(paragraphs)


def read_corpus(data: Path, root: Path, facts: dict[str, Fact]) -> Corpus:
    """Everything below `data` (the question files) and the documentation of the checkout `root`."""
    entries: list[Entry] = []
    conversations: tuple[tuple[Turn, ...], ...] = ()
    for path in sorted(data.glob("*.md")):
        try:
            text = fill(path.read_text(encoding="utf-8"), facts)
        except FactError as error:
            raise CorpusError(f"{path}: {error}") from error
        if path.name == "conversations.md":
            conversations = parse_conversations(text, str(path))
        else:
            entries.extend(parse_entries(text, str(path)))
    if not entries:
        raise CorpusError(f"{data}: no question files (*.md); run this from a full checkout")
    return Corpus(tuple(entries), conversations, read_documents(root))
