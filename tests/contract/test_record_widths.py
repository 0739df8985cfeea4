"""No record of a model, its layers, its operations or its steps is too wide to be read, and none of
the operator."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "engine/atom"
# The most fields of a record, by place: a kind of attention has only the facts of that kind.
MOST_FIELDS = {"sizing": 15, "sizing/attention": 7, "models": 15, "model_ops": 15, "utils": 15}


def records(folder: Path) -> Iterator[tuple[str, int]]:
    """Every record below a folder with the number of its own fields and its bases'. A constant of
    the class (ClassVar) is no field."""
    classes = {
        node.name: node
        for path in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }

    def fields(name: str) -> int:
        node = classes[name]
        own = sum(
            isinstance(each, ast.AnnAssign)
            and not ast.unparse(each.annotation).startswith("ClassVar")
            for each in node.body
        )
        return own + sum(fields(base) for base in map(ast.unparse, node.bases) if base in classes)

    for name, node in classes.items():
        if "dataclass" in " ".join(map(ast.unparse, node.decorator_list)) or node.bases:
            yield name, fields(name)


@pytest.mark.parametrize("place", MOST_FIELDS)
def test_no_record_has_more_fields_than_its_place_allows(place: str) -> None:
    found = dict(records(ENGINE / place))
    assert len(found) >= 8
    assert {name: count for name, count in found.items() if count > MOST_FIELDS[place]} == {}


def test_fields_of_bases_count(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "@dataclass\nclass Base:\n    name: ClassVar[str]\n    one: int\n\n"
        "@dataclass\nclass Leaf(Base):\n    two: int\n"
    )
    assert dict(records(tmp_path)) == {"Base": 1, "Leaf": 2}


def test_no_record_of_the_operator_has_more_than_eleven_fields() -> None:
    """What users write has as many fields as it needs; it is no dataclass."""
    found = {
        f"{path.name} {node.name}": sum(isinstance(each, ast.AnnAssign) for each in node.body)
        for path in (ROOT / "operator/atom_operator").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and "dataclass" in " ".join(map(ast.unparse, node.decorator_list))
    }
    assert len(found) >= 200
    assert {name: count for name, count in found.items() if count > 11} == {}
