"""The nearest tests come first, within the budget, and every changed file has its turn."""

from __future__ import annotations

import itertools

import pytest

from tools.check.selection import UNKNOWN_SECONDS, Selection, select

SCHEDULER = "engine/atom/model_engine/scheduler.py"
PLAN = "operator/atom_operator/plan/rollouts/rollout.py"


def test_tests_named_as_the_file_come_before_nearer_ones() -> None:
    steps = {"tests/a/test_memory.py": 1, "tests/a/test_scheduler.py": 2, "tests/a/test_far.py": 5}
    assert select({SCHEDULER: steps}, {}, 100.0).chosen == (
        "tests/a/test_scheduler.py", "tests/a/test_memory.py", "tests/a/test_far.py",
    )  # fmt: skip


def test_of_equally_near_tests_the_quicker_comes_first() -> None:
    steps = dict.fromkeys(["tests/test_slow.py", "tests/test_quick.py"], 2)
    seconds = {"tests/test_slow.py": 30.0, "tests/test_quick.py": 0.1}
    assert select({SCHEDULER: steps}, seconds, 20.0) == Selection(
        ("tests/test_quick.py",), ("tests/test_slow.py",)
    )


def test_the_nearest_test_of_each_file_runs_even_over_the_budget() -> None:
    steps = {SCHEDULER: {"tests/test_b.py": 1}, PLAN: {"tests/test_c.py": 1, "tests/test_d.py": 2}}
    chosen = select(steps, {"tests/test_b.py": 99.0, "tests/test_c.py": 99.0}, 10.0)
    assert chosen == Selection(("tests/test_b.py", "tests/test_c.py"), ("tests/test_d.py",))


@pytest.mark.parametrize(("files", "tests"), itertools.product([1, 2, 7], [0, 1, 30]))
def test_nothing_is_chosen_twice_or_lost(files: int, tests: int) -> None:
    names = [f"tests/test_{number}.py" for number in range(tests)]
    steps = {
        f"engine/atom/file_{file}.py": {name: 1 + (file + at) % 3 for at, name in enumerate(names)}
        for file in range(files)
    }
    budget = 10 * UNKNOWN_SECONDS
    found = select(steps, {}, budget)
    assert sorted((*found.chosen, *found.left_out)) == sorted(names)
    assert len(found.chosen) == min(tests, 10)
