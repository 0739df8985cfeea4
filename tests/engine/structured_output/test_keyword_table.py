"""The guide's table of keywords says what the code does: every keyword, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from atom.structured_outputs.json_schema.formats import FORMATS
from atom.structured_outputs.json_schema.keywords import ANNOTATIONS, KEPT, REFUSED

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "structured-output.md"


def rows() -> list[tuple[set[str], str]]:
    """(keywords, what becomes of them) of each row."""
    section = GUIDE.read_text(encoding="utf-8").split("## Keywords")[1].split("\n## ")[0]
    cells = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| ")]
    return [(set(re.findall(r"`([^`]+)`", cell)), fate) for cell, fate in cells[1:]]


def test_each_keyword_has_its_row_and_its_fate() -> None:
    kept = {name for names, fate in rows() if "kept" in fate.split(";")[0] for name in names}
    refused = {name for names, fate in rows() if fate.startswith(" refused") for name in names}
    harmless = {name for names, fate in rows() if "annotations" in fate for name in names}
    assert kept == set(KEPT)
    assert refused == set(REFUSED)
    assert harmless - {"x-…"} == ANNOTATIONS


def test_each_format_that_is_asserted_is_named() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    (asserted,) = re.findall(r"- Formats are asserted: (.*?) Other formats", text, re.DOTALL)
    assert set(re.findall(r"`([^`]+)`", asserted)) == set(FORMATS)
