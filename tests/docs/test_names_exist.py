"""Files, modules, classes and functions that the documents name in backticks exist in the tree.

A path may be short: `schedule/row_table.py` is any file that ends so. Braces and stars stand for
several files, and every one of the braces has to be there.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TREES = ("benchmarks", "charts", "crds", "devcluster", "docs", "engine", "examples", "images")
TREES += ("operator", "requirements", "tests", "tools")
PAGES = [
    *DOCS.glob("*.md"),
    *DOCS.glob("guides/*.md"),
    *DOCS.glob("kernels/*.md"),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "tests" / "support" / "README.md",
]
# Pages about this program alone: every identifier in them is its own.
OWN_PAGES = [DOCS / "architecture.md", DOCS / "glossary.md"]
# Upstream's, which its users look for.
FOREIGN = {"base_attention.py", "attention_mha.py", "topK.py", "atom.models.qwen3"}

CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w*-]+(/[\w.*-]+)*\.py|[\w-]+(/[\w*-]+)+/?")
MODULE = re.compile(r"(?:atom|atom_operator|devcluster|benchmarks|tools)(?:\.\w+)+")
COMMAND = re.compile(r"python -m ([\w.]+)")
IDENTIFIER = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)(?:\([^)]*\))?")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def pieces(page: Path) -> Iterator[str]:
    """What stands in backticks, braces written out."""
    for text in CODE.findall(page.read_text(encoding="utf-8")):
        yield from written_out(text)


def written_out(text: str) -> Iterator[str]:
    braces = re.search(r"\{([^{}]*,[^{}]*)\}", text)
    if braces is None:
        yield text
        return
    for part in braces.group(1).split(","):
        yield from written_out(text[: braces.start()] + part.strip() + text[braces.end() :])


@cache
def tree() -> frozenset[str]:
    """Every file and folder of the repository, by its path."""
    found = {path.name for path in ROOT.iterdir()}
    for top in TREES:
        found |= {str(path.relative_to(ROOT)) for path in (ROOT / top).rglob("*")}
    return frozenset(found)


def exists(path: str) -> bool:
    wanted = path.rstrip("/")
    if "*" in wanted:
        return any(fnmatch(f"/{has}", f"*/{wanted}") for has in tree())
    return wanted in tree() or any(has.endswith(f"/{wanted}") for has in tree())


def is_there(dotted: str) -> bool:
    try:
        resolve_name(dotted)
    except (AttributeError, ImportError):
        return False
    return True


def paths(page: Path) -> list[str]:
    return [text for text in pieces(page) if PATH.fullmatch(text) and text not in FOREIGN]


@cache
def words() -> frozenset[str]:
    """Every word of the programs' sources, and the name of each module."""
    sources = [*(ROOT / "engine").rglob("*.py"), *(ROOT / "operator").rglob("*.py")]
    sources += [*(ROOT / "devcluster").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    sources += [*(ROOT / "charts").rglob("*.yaml"), *(ROOT / "crds").rglob("*.yaml")]
    found = {path.stem for path in sources}
    for path in sources:
        found.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_path_is_in_the_tree(page: Path) -> None:
    assert [path for path in paths(page) if not exists(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_module_can_be_imported(page: Path) -> None:
    named = {text for text in pieces(page) if MODULE.fullmatch(text)} - tree() - FOREIGN
    assert sorted(name for name in named if not is_there(name)) == []


@pytest.mark.parametrize("page", [*PAGES, *DOCS.glob("runbooks/*.md")], ids=page_id)
def test_every_command_of_ours_is_a_module(page: Path) -> None:
    named = COMMAND.findall(page.read_text(encoding="utf-8"))
    assert [name for name in named if importlib.util.find_spec(name.rstrip(".")) is None] == []


@pytest.mark.parametrize("page", OWN_PAGES, ids=page_id)
def test_every_identifier_is_in_the_sources(page: Path) -> None:
    found = (IDENTIFIER.fullmatch(text) for text in pieces(page))
    parts = {part for match in found if match for part in match.group(1).split(".")}
    assert sorted(part for part in parts if part not in words() and part not in TREES) == []


def test_a_path_that_is_not_there_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`runner/{step_runner, nowhere}.py`, `model_engine/nowhere/`, `models/*.py`")
    assert [path for path in paths(page) if not exists(path)] == [
        "runner/nowhere.py",
        "model_engine/nowhere/",
    ]
    assert not is_there("atom.model_engine.nowhere")


def test_the_glossary_has_only_words_of_our_own() -> None:
    """Words of the field need no row, so a longer list is a sign of private names in the code."""
    lines = (DOCS / "glossary.md").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.startswith("| ")]) - 2 <= 35


def test_the_page_of_the_tests_support_names_every_part() -> None:
    support = ROOT / "tests" / "support"
    page = (support / "README.md").read_text(encoding="utf-8")
    parts = [
        f"support/{part.name}{'/' if part.is_dir() else ''}"
        for part in support.iterdir()
        if part.is_dir() or part.suffix == ".py"
    ]
    named = set(CODE.findall(page))
    shown = {part for part in parts if "__pycache__" not in part}
    assert shown - named == set()
