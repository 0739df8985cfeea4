"""The reference pages say what the code says, and miss nothing of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from atom_operator.constants import ConditionType, Reason
from tools.generate_reference import FOLDER, PAGES
from tools.reference.conditions import meanings
from tools.reference.http_errors import http_errors

ENGINE = Path(__file__).resolve().parents[2] / "engine" / "atom"


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name](), "run make generate"


def test_every_reference_page_is_generated() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(PAGES)


def test_every_condition_and_reason_has_a_meaning() -> None:
    known = meanings()
    reasons = [reason for part in known.values() for reason in part.get("reasons", ())]
    assert list(known) == list(ConditionType)
    assert sorted(reasons) == sorted(Reason)


def raised_errors() -> Iterator[tuple[int, str | None]]:
    """Status and code of each call in the engine that makes an error of a request."""
    for path in ENGINE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("RequestError", "_body"):
                yield from literal(node)


def literal(call: ast.Call) -> Iterator[tuple[int, str | None]]:
    values = {each.arg: each.value for each in call.keywords}
    status, code = values.get("status"), values.get("code")
    if call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, int):
        status = call.args[0]
    if status is None:
        status = ast.Constant(400)  # the default
    if isinstance(status, ast.Constant) and (code is None or isinstance(code, ast.Constant)):
        yield status.value, None if code is None else code.value


def test_every_error_of_a_request_is_listed() -> None:
    listed = {(error.status, error.code) for error in http_errors()}
    raised = set(raised_errors())
    assert len({code for _, code in raised}) >= 10  # the search finds what there is
    assert sorted(raised - listed, key=str) == []


def test_every_code_that_is_listed_is_in_the_sources() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in ENGINE.rglob("*.py"))
    codes = {error.code for error in http_errors() if error.code}
    assert sorted(code for code in codes if f'"{code}"' not in text) == []
