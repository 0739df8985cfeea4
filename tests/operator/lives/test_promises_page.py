"""The page of promises and the judge of the lives name each other; the guides have the words."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.operator_life import life
from tests.support.operator_life.promise import HELD

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
_PAGE = DOCS / "promises.md"
_ROW = re.compile(r"^\| `([a-z-]+)` \| (.+) \| \[[^\]]+\]\(([^)#]*)#?[^)]*\) \|$", re.MULTILINE)
ROWS = _ROW.findall(_PAGE.read_text(encoding="utf-8"))
JUDGES = ("promises", "canaries", "device_promises", "group_promises", "pairs", "wider", "closed")
# They pass on what another check has found.
_FORWARD = {"judge"}


def test_every_promise_of_the_page_has_a_check_and_every_check_a_promise() -> None:
    assert life.Life  # importing it imports every judge
    names = [name for name, _, _ in ROWS]
    assert len(names) == len(set(names))
    assert set(names) == set(HELD)


@pytest.mark.parametrize(("name", "words", "page"), ROWS, ids=[row[0] for row in ROWS])
def test_the_page_that_makes_a_promise_has_its_words(name: str, words: str, page: str) -> None:
    found = _PAGE.read_text(encoding="utf-8").partition("## Promises stated here")[2]
    if page:
        found = (DOCS / page).read_text(encoding="utf-8")
    assert " ".join(words.split()) in " ".join(re.sub(r"\]\([^)]*\)|\[", "", found).split()), name


@pytest.mark.parametrize("judge", JUDGES)
def test_no_check_of_the_judge_is_without_a_promise(judge: str) -> None:
    path = ROOT / "tests" / "support" / "operator_life" / f"{judge}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    unnamed = [
        item.name
        for item in ast.walk(tree)
        if isinstance(item, ast.FunctionDef) and _checks(item) and not _is_named(item)
    ]
    assert set(unnamed) <= _FORWARD, "mark them with @promise, and add a row to docs/promises.md"


def _checks(function: ast.FunctionDef) -> bool:
    """Whether it breaks a life off, or answers with what is broken."""
    holds = any(
        isinstance(item, ast.Call)
        and isinstance(item.func, ast.Attribute)
        and item.func.attr == "_hold"
        for item in ast.walk(function)
    )
    answers = any(
        isinstance(item, ast.Return)
        and isinstance(item.value, ast.JoinedStr | ast.Constant)
        and (isinstance(item.value, ast.JoinedStr) or isinstance(item.value.value, str))
        for item in ast.walk(function)
    )
    return holds or answers


def _is_named(function: ast.FunctionDef) -> bool:
    return any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "promise"
        for each in function.decorator_list
    )
