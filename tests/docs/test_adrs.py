"""Decisions are numbered without gaps, and whoever refers to one by its number means that one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "adr"
RECORDS = sorted(FOLDER.glob("*.md"))
NUMBERS = {path.name: int(path.name[:4]) for path in RECORDS}
PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]
LINK = re.compile(r"\[(?:ADR )?(\d+)\]\([^)\s]*?(\d{4}-[\w-]+\.md)[^)]*\)")
MENTION = re.compile(r"\bADRs? (\d+(?:(?:, | and )\d+)*)")
SOURCES = [path for top in ("engine", "operator", "tools") for path in (ROOT / top).rglob("*.py")]


def test_numbers_have_no_gaps() -> None:
    assert list(NUMBERS.values()) == list(range(1, len(RECORDS) + 1))


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_the_title_has_the_number_of_the_file(record: Path) -> None:
    assert record.read_text(encoding="utf-8").startswith(f"# {NUMBERS[record.name]}. ")


def test_a_link_by_number_leads_to_that_record() -> None:
    wrong = [
        f"{page.relative_to(ROOT)}: {number} is {name}"
        for page in PAGES
        for number, name in LINK.findall(page.read_text(encoding="utf-8"))
        if NUMBERS.get(name) != int(number)
    ]
    assert wrong == []


def test_every_number_that_is_mentioned_exists() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}: {text}"
        for file in [*PAGES, *SOURCES]
        for text in MENTION.findall(file.read_text(encoding="utf-8"))
        if not set(map(int, re.findall(r"\d+", text))) <= set(NUMBERS.values())
    ]
    assert wrong == []


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_a_record_that_another_replaces_says_so_at_its_head(record: Path) -> None:
    head = "\n".join(record.read_text(encoding="utf-8").splitlines()[:6])
    if re.search("supersed", head, re.IGNORECASE):
        assert re.search(r"\*\*Status:\*\* superseded (in part )?by \[ADR \d+\]", head)


def test_the_navigation_has_records_by_subject_under_their_numbers() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    extend = next(entry["Extend"] for entry in nav if "Extend" in entry)
    groups = next(entry["Decisions"] for entry in extend if "Decisions" in entry)
    assert [name for group in groups for name in group] == [
        "Engine core",
        "Kernels",
        "Serving",
        "Operator",
        "Project",
    ]
    for group in groups:
        for entry in next(iter(group.values())):
            for label, page in entry.items():
                assert label.startswith(f"{NUMBERS[Path(page).name]}. ")
