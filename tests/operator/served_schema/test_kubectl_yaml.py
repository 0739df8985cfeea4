"""Files are read as kubectl reads them, not as PyYAML does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom_operator.served_schema.kubectl_yaml import read_documents

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").rglob("*.yaml"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("22:00", "22:00"), ("12:30:45", "12:30:45"), ("2026-01-01", "2026-01-01"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"), ("1e3", 1000), ("8.0", 8), ("0.5", 0.5),
        ("8", 8), ("-8", -8), ("+8", 8), ("1_000", 1000), ("010", 8), ("0o10", 8), ("0x10", 16),
        ("0b11", 3), ("on", True), ("y", True), ("No", False), ("off", False), ("tRue", "tRue"),
        ("~", None), ("null", None), ("", None), ("4Gi", "4Gi"), ("1.2.3", "1.2.3"), (".5", 0.5),
        ("'8'", "8"), ('"on"', "on"), ("0", 0), ("-0", 0), ("1e400x", "1e400x"), ("=", "="),
    ],
)  # fmt: skip
def test_a_scalar_is_what_kubectl_sends(text: str, value: Any) -> None:
    (document,) = read_documents(f"a: {text}\n")
    assert document["a"] == value
    assert type(document["a"]) is type(value)


def test_keys_are_strings_and_merges_are_laid_below() -> None:
    text = "base: &base {a: 1, b: 2}\nuse: {<<: *base, b: 3}\n1: x\non: y\n"
    (document,) = read_documents(text)
    assert document["use"] == {"a": 1, "b": 3}
    assert {document["1"], document["true"]} == {"x", True}


@pytest.mark.parametrize("text", ["a: 1\na: 2\n", "x: {b: 1, b: 1}", '{"a": 1, "a": 2}'])
def test_a_key_that_occurs_twice_is_an_error(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="occurs twice"):
        read_documents(text)


def test_json_is_read_with_its_numbers() -> None:
    assert read_documents('{"a": 8.0, "b": 0.5, "c": [1e2]}') == [{"a": 8, "b": 0.5, "c": [100]}]


@pytest.mark.parametrize("text", ["[" * 100_000, "{" * 100_000, "a: " + "[" * 5_000])
def test_values_that_are_nested_too_deeply_are_an_error(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        read_documents(text)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_mean_what_they_mean_to_pyyaml(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    theirs = [item for item in yaml.safe_load_all(text) if item is not None]
    assert json.dumps(read_documents(text)) == json.dumps(theirs)
