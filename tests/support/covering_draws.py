"""Random selections of names in which any two names meet, for tests of features that meet."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations

Pair = tuple[str, str]


def covering_draws(
    names: Sequence[str],
    most: int,
    draw: random.Random,
    may_meet: Callable[[Iterable[str]], bool] = lambda names: True,
) -> Iterator[list[str]]:
    """Yield selections of up to `most` names, in order, until any two that may meet have met. A
    pair that has not met yet begins each, and names that bring most new pairs follow."""
    known = sorted(names)
    left = {pair for pair in combinations(known, 2) if may_meet(pair)}
    while left:
        chosen = list(draw.choice(sorted(left)))
        draw.shuffle(known)
        while len(chosen) < most:
            others = [each for each in known if each not in chosen and may_meet([*chosen, each])]
            best = max(others, key=lambda each: _new(each, chosen, left), default=None)
            if best is None:
                break
            chosen.append(best)
        left -= set(combinations(sorted(chosen), 2))
        yield sorted(chosen)


def _new(name: str, chosen: Iterable[str], left: set[Pair]) -> int:
    """Count the pairs that a name would bring."""
    return sum((min(name, other), max(name, other)) in left for other in chosen)
