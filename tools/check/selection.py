"""Rank the tests of changed files and cut the list at a budget; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

UNKNOWN_SECONDS = 4.0  # of a test file that was never run here
_NAME_IN_COMMON = 3.0  # steps that a test named as the file is nearer
_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Selection:
    """The test files to run, the nearest first, and those that the budget leaves out."""

    chosen: tuple[str, ...]
    left_out: tuple[str, ...]


def select(
    distances: Mapping[str, Mapping[str, int]], seconds: Mapping[str, float], budget_seconds: float
) -> Selection:
    """Choose the nearest tests of every changed file within the budget.

    distances: of each changed file its tests with their steps; seconds: of a test file, as last
    run. Files take turns, so that one with many tests does not take the others' share. The
    nearest test of each file is chosen even if it alone is over the budget.
    """
    queues = {
        file: sorted(steps, key=lambda test: (_rank(file, test, steps[test]), _cost(test, seconds)))
        for file, steps in distances.items()
    }
    chosen: list[str] = []
    left_out: list[str] = []
    spent = 0.0
    for turn in range(max(map(len, queues.values()), default=0)):
        for queue in queues.values():
            test = queue[turn] if turn < len(queue) else None
            if test is None or test in chosen or test in left_out:
                continue
            cost = _cost(test, seconds)
            if turn == 0 or spent + cost <= budget_seconds:
                chosen.append(test)
                spent += cost
            else:
                left_out.append(test)
    return Selection(tuple(chosen), tuple(left_out))


def _rank(file: str, test: str, steps: int) -> float:
    """Return the steps to a test, fewer if its name or its folders have the file's words."""
    words = set(_WORD.findall(Path(file).stem)) or {file}
    shared = len(words & set(_WORD.findall(Path(test).stem))) / len(words)
    folders = set(Path(file).parts[:-1]) & set(Path(test).parts[:-1])
    return steps - _NAME_IN_COMMON * shared - 0.5 * len(folders)


def _cost(test: str, seconds: Mapping[str, float]) -> float:
    return seconds.get(test, UNKNOWN_SECONDS)
