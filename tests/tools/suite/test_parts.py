"""`make test` and `make test-all` have every daily test between them, and none twice."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tools.suite.parts import INDEX, KERNELS, Suite, parts_of

ROOT = Path(__file__).parents[3]
MARKS = ("cluster", "gpu", "aiter", "slow", "whole", "neighbour")
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "tests").rglob("test_*.py")
}


def runs(expression: str, marks: set[str]) -> bool:
    return Expression.compile(expression).evaluate(lambda name, **_: name in marks)


@pytest.mark.parametrize(
    "marks", [set(each) for n in range(4) for each in itertools.combinations(MARKS, n)], ids=str
)
def test_every_test_is_in_one_suite_unless_it_needs_a_card_or_is_slow(marks: set[str]) -> None:
    by_machine = sum(runs(suite.marks, marks) for suite in Suite)
    on_cluster = sum(runs(suite.cluster_marks, marks) for suite in Suite)
    if "slow" in marks:
        assert (by_machine, on_cluster) == (0, 0)
    elif "cluster" in marks:
        assert (by_machine, on_cluster) == (0, 1)
    else:
        assert (by_machine, on_cluster) == (int(not marks & {"gpu", "aiter"}), 0)


def test_the_parts_of_test_have_every_folder_once() -> None:
    commands = {part.name: part.command for part in parts_of(Suite.TEST, 1, TEXTS)}
    tests = {"integration", "engine", "units", "kernels", "operator"}
    assert set(commands) == {"cluster", *tests, "checks"}
    ignored = {path.removeprefix("--ignore=") for path in commands["engine"] if "ignore" in path}
    assert ignored == {commands[name][-1] for name in ("integration", "kernels", "units")}
    assert commands["operator"][-1] == "--ignore=tests/engine"


def test_every_file_with_a_whole_test_is_in_the_other_suite() -> None:
    marked = {
        file
        for file, text in TEXTS.items()
        if any(
            f"mark.{mark}" in text for mark in ("whole", "pairs", "singles", "rotated", "sampled")
        )
        and "ops/parity" not in file
    }
    named = {path for part in parts_of(Suite.ALL, 1, TEXTS) for path in part.command}
    assert marked - {Path(__file__).relative_to(ROOT).as_posix()} <= named
    assert KERNELS in named
    assert len(marked) > 1


def test_the_index_of_executed_files_is_of_make_test_outside_ci() -> None:
    def with_index(suite: Suite, **options: bool) -> set[str]:
        return {part.name for part in parts_of(suite, 1, TEXTS, **options) if INDEX in part.command}

    assert with_index(Suite.TEST) == {"integration", "engine", "units", "kernels", "operator"}
    assert with_index(Suite.TEST, keeps_index=False) == set()
    assert with_index(Suite.ALL) == set()
