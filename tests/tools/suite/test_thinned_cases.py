"""A matrix that is thinned to pairs loses no pair, and few cases stay."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support import thinned_cases
from tests.support.thinned_cases import cover, sample

pytest_plugins = ["pytester"]
MARKS = "\n  ".join(("pairs", "singles", "rotated", "sampled", "whole", "slow"))
MATRIX = """
import pytest

slow = pytest.mark.slow

@pytest.mark.pairs
@pytest.mark.parametrize("a", range(4))
@pytest.mark.parametrize("b", range(4))
@pytest.mark.parametrize("c", [0, 1, 2, pytest.param(3, marks=slow)])
def test_pairs(a, b, c): ...

@pytest.mark.singles
@pytest.mark.parametrize("a", range(9))
@pytest.mark.parametrize("b", range(3))
def test_singles(a, b): ...

@pytest.mark.rotated
@pytest.mark.parametrize("a", range(8))
def test_rotated_first(a): ...

@pytest.mark.rotated
@pytest.mark.parametrize("a", range(8))
@pytest.mark.parametrize("b", [0, pytest.param(1, marks=slow)])
def test_rotated_second(a, b): ...

@pytest.mark.sampled(3)
@pytest.mark.parametrize("a", range(9))
def test_sampled_first(a): ...

@pytest.mark.sampled(2)
@pytest.mark.parametrize("a", range(8))
def test_sampled_second(a): ...

@pytest.mark.parametrize("a", range(4))
@pytest.mark.parametrize("b", range(4))
def test_other(a, b): ...
"""
IDLE = {
    "pairs of two parameters": """
import pytest

@pytest.mark.pairs
@pytest.mark.parametrize("a", range(4))
@pytest.mark.parametrize("b", range(4))
def test_two(a, b): ...
""",
    "one rotated test": """
import pytest

@pytest.mark.rotated
@pytest.mark.parametrize("a", range(4))
def test_alone(a): ...

def test_other(): ...
""",
    "as many samples as cases": """
import pytest

@pytest.mark.sampled(4)
@pytest.mark.parametrize("a", range(4))
def test_four(a): ...
""",
}
ALL = {
    "pairs": 48, "singles": 27, "rotated_first": 8, "rotated_second": 8, "sampled_first": 9,
    "sampled_second": 8, "other": 16,
}  # fmt: skip


@given(st.lists(st.integers(1, 4), min_size=2, max_size=3), st.sampled_from([1, 2]))
@example([3, 2, 4, 3], 2)
def test_every_combination_is_kept(sizes: list[int], together: int) -> None:
    cases = list(itertools.product(*map(range, sizes)))
    kept = [cases[number] for number in cover(cases, together)]
    for places in itertools.combinations(range(len(sizes)), together):
        wanted = set(itertools.product(*(range(sizes[place]) for place in places)))
        assert {tuple(case[place] for place in places) for case in kept} == wanted


def test_few_cases_of_a_large_matrix_are_kept() -> None:
    cases = list(itertools.product(range(4), range(4), range(4), range(4)))
    assert len(cover(cases, 2)) <= 32
    assert len(cover(cases, 1)) == 4


def test_the_values_of_a_short_parameter_are_mixed_evenly() -> None:
    cases = list(itertools.product(range(30), range(3)))
    met = Counter(cases[number][1] for number in cover(cases, 1))
    assert set(met.values()) == {10}


@pytest.mark.parametrize(("start", "chosen"), [(0.0, {0, 3, 6}), (0.5, {1, 4, 7})])
def test_samples_of_one_parameter_are_spread_evenly(start: float, chosen: set[int]) -> None:
    assert sample([(number,) for number in range(9)], 3, start) == chosen


def test_samples_have_as_many_values_as_they_can() -> None:
    cases = list(itertools.product(range(4), range(3)))
    chosen = [cases[number] for number in sample(cases, 4)]
    assert {a for a, _ in chosen} == set(range(4))
    assert {b for _, b in chosen} == set(range(3))


_OF_FILES = pytest.param(["-p", "no:randomly"], marks=pytest.mark.whole)


@pytest.mark.parametrize("order", [_OF_FILES, ["--randomly-seed=6"]])
def test_marked_tests_alone_are_thinned_and_in_any_order_alike(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, order: list[str]
) -> None:
    pytester.makepyfile(MATRIX)
    pytester.makeini(f"[pytest]\nmarkers =\n  {MARKS}\n")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))

    def collected(marks: str) -> dict[str, set[str]]:
        options = ["-p", thinned_cases.__name__, "-q", "--collect-only", *order, "-m", marks]
        lines = pytester.runpytest_subprocess(*options).outlines
        found: dict[str, set[str]] = {}
        for name, _, case in (line.partition("::test_")[2].partition("[") for line in lines):
            found.setdefault(name, set()).add(case)
        return found

    daily, whole = collected("not whole and not slow"), collected("whole and not slow")
    assert {name: len(daily[name] | whole.get(name, set())) for name in ALL} == ALL
    assert not [name for name in ALL if daily[name] & whole.get(name, set())]
    assert set(ALL) - set(whole) == {"other"}
    assert 16 <= len(daily["pairs"]) <= 24
    assert len(daily["singles"]) == 9
    assert daily["rotated_first"] == {"0]", "2]", "4]", "6]"}
    assert daily["rotated_second"] == {"0-1]", "0-3]", "0-5]", "0-7]"}
    assert daily["sampled_first"] == {"0]", "3]", "6]"}
    assert daily["sampled_second"] == {"2]", "6]"}


@pytest.mark.parametrize("text", IDLE.values(), ids=IDLE)
def test_a_mark_that_leaves_every_case_is_refused(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    pytester.makepyfile(text)
    pytester.makeini(f"[pytest]\nmarkers =\n  {MARKS}\n")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    options = ["-p", thinned_cases.__name__, "-q", "--collect-only", "-p", "no:randomly"]
    result = pytester.runpytest_subprocess(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "so every case would stay" in result.stderr.str()
