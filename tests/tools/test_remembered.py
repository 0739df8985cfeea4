"""A check reads again what changed, and never believes an entry that another text or tool made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.remembered import per_file


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    file = tmp_path / "check_words.py"
    file.write_text("first")
    return file


def words(tool: Path, texts: dict[str, str], read: list[str]) -> dict[str, int]:
    def compute(path: str, text: str) -> int:
        read.append(path)
        return len(text.split())

    return per_file(tool, texts, compute, tool.parent / "cache")


def test_what_is_the_same_is_not_read_again(tool: Path) -> None:
    read: list[str] = []
    assert words(tool, {"a": "one", "b": "one two"}, read) == {"a": 1, "b": 2}
    assert words(tool, {"a": "one", "b": "one two three"}, read) == {"a": 1, "b": 3}
    assert read == ["a", "b", "b"]


def test_what_is_gone_is_forgotten(tool: Path) -> None:
    words(tool, {"a": "one", "b": "one"}, [])
    assert words(tool, {"a": "one"}, []) == {"a": 1}
    read: list[str] = []
    words(tool, {"a": "one", "b": "one"}, read)
    assert read == ["b"]


def test_another_version_of_the_tool_reads_everything(tool: Path) -> None:
    words(tool, {"a": "one"}, [])
    tool.write_text("second")
    read: list[str] = []
    words(tool, {"a": "one"}, read)
    assert read == ["a"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"files": {}}', "null", "7"])
def test_a_cache_that_makes_no_sense_is_no_cache(tool: Path, text: str) -> None:
    words(tool, {"a": "one"}, [])
    (tool.parent / "cache" / "check_words.json").write_text(text)
    assert words(tool, {"a": "one"}, []) == {"a": 1}
