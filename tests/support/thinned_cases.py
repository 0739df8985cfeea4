"""Thin generated matrices for `make test`: a pytest plugin that `tests/conftest.py` loads.

Cases that a mark thins out get the mark `whole`, so `make test-all` runs them.

- `pairs`: the cases that stay have every pair of values of two parameters. Of a matrix of three or
  more parameters; a fault that needs two values together is found by every commit.
- `singles`: the cases that stay have every value of each parameter once, and mix them evenly. Of
  two parameters that do not act on each other, such as a model and a version of a library.
- `rotated`: of the tests of a file that have this mark, each has its turn of the same values: the
  first test keeps the first value, the second test the second one, and so on. Of a proof that is
  repeated for every model, where another test of the file runs every model.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations

import pytest

Case = Sequence[Hashable]  # a value per parameter


@pytest.hookimpl(tryfirst=True)  # before marks deselect
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for mark, together in (("singles", 1), ("pairs", 2)):
        for cases in _grouped(items, mark, _test_of).values():
            kept = cover([_values(item) for item in cases], together)
            _mark_others(cases, kept)
    for cases in _grouped(items, "rotated", _file_of).values():
        tests = sorted({_test_of(item) for item in cases})
        for turn, test in enumerate(tests):
            own = [item for item in cases if _test_of(item) == test]
            _mark_others(own, set(range(turn % len(own), len(own), len(tests))))


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


def _mark_others(cases: Sequence[pytest.Function], kept: set[int]) -> None:
    for number, item in enumerate(cases):
        if number not in kept:
            item.add_marker(pytest.mark.whole)


def _values(item: pytest.Function) -> Case:
    """Return a case by its values, which cases share as objects; they may have no hash."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return tuple(id(params[name]) for name in sorted(params))


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
