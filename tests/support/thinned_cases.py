"""Thin generated matrices for `make test`: a pytest plugin that `tests/conftest.py` loads.

Cases that a mark thins out get the mark `whole`, so `make test-all` runs them.

- `pairs`: the cases that stay have every pair of values of two parameters. Of a matrix of three or
  more parameters; a fault that needs two values together is found by every commit.
- `singles`: the cases that stay have every value of each parameter once, and mix them evenly. Of
  two parameters that do not act on each other, such as a model and a version of a library.
- `rotated`: of the tests of a file that have this mark, each has its turn of the same values: the
  first test keeps the first value, the second test the second one, and so on. Of a proof that is
  repeated for every model, where another test of the file runs every model.
- `sampled(n)`: n of the cases stay, spread over all of them, values that no other case had first.
  Several such tests of a file begin at different cases. Of a proof whose cases are instances of n
  or fewer classes of faults.

A mark that leaves every case is refused: `pairs` of fewer than three parameters, `rotated` of the
only test of its file that has it, and `sampled` of as many cases as there are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import combinations

import pytest

Case = Sequence[Hashable]  # a value per parameter


@pytest.hookimpl(tryfirst=True)  # before marks deselect
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _keep_combinations(items)
    _keep_turns(items)
    _keep_samples(items, knows_all=not _asks_single_tests(config))


def _keep_combinations(items: Sequence[pytest.Item]) -> None:
    for mark, together in (("singles", 1), ("pairs", 2)):
        for test, cases in _grouped(items, mark, _test_of).items():
            if mark == "pairs" and len(_params(cases[0])) < 3:
                raise pytest.UsageError(
                    f"{test} has the mark pairs and fewer than three parameters, so every case "
                    "would stay: mark it singles, or whole where a case repeats"
                )
            kept = cover([_values(item) for item in cases], together)
            _mark_others(cases, kept)


def _keep_turns(items: Sequence[pytest.Item]) -> None:
    for file, cases in _grouped(items, "rotated", _file_of).items():
        if _rotated_tests_beside(cases[0]) < 2:
            raise pytest.UsageError(
                f"{file} has one test with the mark rotated, so every case would stay: mark it "
                "singles, or whole where a case repeats"
            )
        tests = sorted({_test_of(item) for item in cases})
        for turn, test in enumerate(tests):
            own = [item for item in cases if _test_of(item) == test]
            _mark_others(own, set(range(turn % len(own), len(own), len(tests))))


def _keep_samples(items: Sequence[pytest.Item], *, knows_all: bool) -> None:
    idle = []
    for cases in _grouped(items, "sampled", _file_of).values():
        tests = sorted({_test_of(item) for item in cases})
        for turn, test in enumerate(tests):
            own = [item for item in cases if _test_of(item) == test]
            mark = own[0].get_closest_marker("sampled")
            assert mark is not None
            (count,) = mark.args
            if len(own) <= count:
                idle.append(f"{test} has the mark sampled({count}) and {len(own)} cases")
            _mark_others(own, sample([_values(item) for item in own], count, turn / len(tests)))
    if idle and knows_all:
        raise pytest.UsageError(
            f"{'; '.join(idle)}: so every case would stay: give a smaller number, or remove the "
            "mark"
        )


def cover(cases: Sequence[Case], together: int) -> set[int]:
    """Choose few of the cases, so that any values that a case has together are in a chosen one.

    together: how many values of a case count as one combination: 1 or 2. The next case is the one
    with the most combinations that are missing, of equals the one whose values were chosen least,
    and of those the first. Returns the numbers of the chosen cases.
    """
    found = [set(combinations(enumerate(case), min(together, len(case)))) for case in cases]
    missing = set().union(*found)
    used: Counter[tuple[int, Hashable]] = Counter()
    kept: set[int] = set()
    while missing:
        best = max(
            range(len(cases)),
            key=lambda number: (
                len(found[number] & missing),
                -sum(used[each] for each in enumerate(cases[number])),
            ),
        )
        kept.add(best)
        used.update(enumerate(cases[best]))
        missing -= found[best]
    return kept


def sample(cases: Sequence[Case], count: int, start: float = 0.0) -> set[int]:
    """Choose `count` of the cases, spread over their order.

    start: where the first choice is between two that are evenly spread, from 0 to below 1. A case
    with more values that no chosen case has comes first, then one whose values were chosen least.
    Returns the numbers of the chosen cases.
    """
    step = len(cases) / count
    spread = [int((number + start) * step) for number in range(count)]
    order = list(dict.fromkeys((*spread, *range(len(cases)))))
    used: Counter[tuple[int, Hashable]] = Counter()
    kept: list[int] = []
    while len(kept) < min(count, len(cases)):
        best = max(
            (number for number in order if number not in kept),
            key=lambda number: (
                sum(not used[each] for each in enumerate(cases[number])),
                -sum(used[each] for each in enumerate(cases[number])),
            ),
        )
        kept.append(best)
        used.update(enumerate(cases[best]))
    return set(kept)


def _grouped(
    items: Iterable[pytest.Item], mark: str, group_of: Callable[[pytest.Item], str]
) -> dict[str, list[pytest.Function]]:
    """Group the marked tests; in the order of their names, whatever order this run has.

    Cases of a mark that runs elsewhere are left out: their values are not proven here.
    """
    groups: dict[str, list[pytest.Function]] = defaultdict(list)
    marked = [
        item
        for item in items
        if item.get_closest_marker(mark)
        and isinstance(item, pytest.Function)
        and not any(map(item.get_closest_marker, ("gpu", "slow", "aiter", "whole")))
    ]
    for item in sorted(marked, key=lambda item: item.nodeid):
        groups[group_of(item)].append(item)
    return groups


def _asks_single_tests(config: pytest.Config) -> bool:
    """Return whether a run collects a part of the cases of a file."""
    return any("::" in each for each in config.args) or bool(config.getoption("lf", False))


def _mark_others(cases: Sequence[pytest.Function], kept: set[int]) -> None:
    for number, item in enumerate(cases):
        if number not in kept:
            item.add_marker(pytest.mark.whole)


def _values(item: pytest.Function) -> Case:
    """Return a case by its values, which cases share as objects; they may have no hash."""
    params = _params(item)
    return tuple(id(params[name]) for name in sorted(params))


def _params(item: pytest.Function) -> Mapping[str, object]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _rotated_tests_beside(item: pytest.Function) -> int:
    """Count the tests of the item's module that have the mark, whichever of them were asked for."""
    marks = [getattr(each, "pytestmark", []) for each in vars(item.module).values()]
    return sum(isinstance(of, list) and "rotated" in {mark.name for mark in of} for of in marks)


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
