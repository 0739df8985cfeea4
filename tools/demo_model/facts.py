"""The facts of this project that the demo model tells: by name, as they are said, and whether they
still hold.

Question files name them in braces, such as `{block_size}`, and so does the list of test questions.
The checkpoint keeps those that it was taught (facts.json), so that a test can tell whether they
still are facts. Where they come from is code_facts.py; this module knows texts and files alone.
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "facts.json"
_NAME = re.compile(r"\{([a-z_]+)\}")


class FactError(Exception):
    """A text names a fact that there is not."""


@dataclass(frozen=True, slots=True)
class Fact:
    """`values` as they are said; when not `complete`, some of them: others may come."""

    values: tuple[str, ...]
    complete: bool = True

    def said(self) -> str:
        *others, last = self.values
        return f"{', '.join(others)} and {last}" if others else last

    def holds_beside(self, now: "Fact") -> bool:
        """Return whether this is still true where `now` is."""
        return self == now if self.complete else set(self.values) <= set(now.values)


def fill(text: str, facts: dict[str, Fact]) -> str:
    """The text with every fact in its place. Raises `FactError` on a name that is none."""

    def said(match: re.Match[str]) -> str:
        if match[1] not in facts:
            raise FactError(f"{{{match[1]}}} is no fact; facts: {', '.join(facts)}")
        return facts[match[1]].said()

    return _NAME.sub(said, text)


def names_in(text: str) -> set[str]:
    return set(_NAME.findall(text))


def write_facts(folder: Path, facts: dict[str, Fact]) -> None:
    rows = {name: asdict(fact) for name, fact in facts.items()}
    (folder / FILE).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def read_facts(file: Path) -> dict[str, Fact]:
    """Read the facts of a facts.json."""
    rows = json.loads(file.read_text(encoding="utf-8"))
    return {name: Fact(tuple(row["values"]), row["complete"]) for name, row in rows.items()}
