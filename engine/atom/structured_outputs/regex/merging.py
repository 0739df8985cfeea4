"""Merge indistinguishable states, which makes an automaton's grammar smaller. Pure.

Small automata are minimised (Moore). Large ones come from bounds on length and so have next to no
cycles; their states with equal continuations are merged from the back, in one pass.
"""

from __future__ import annotations

Moves = dict[int, int]  # from class of characters to state

_MINIMAL = 120
_PASSES = 3


def merged(moves: list[Moves], accepting: set[int]) -> tuple[list[Moves], set[int]]:
    """Return an automaton of the same texts with fewer states; the start stays state 0."""
    if len(moves) <= _MINIMAL:
        return _renamed(moves, accepting, _groups(moves, accepting))
    for _ in range(_PASSES):
        size = len(moves)
        moves, accepting = _renamed(moves, accepting, _alike(moves, accepting))
        if len(moves) == size:
            break
    return moves, accepting


def _groups(moves: list[Moves], accepting: set[int]) -> list[int]:
    """Return for each state the number of its class of equivalent states."""
    groups, count = [int(state in accepting) for state in range(len(moves))], 0
    while True:
        numbers: dict[object, int] = {}
        refined = []
        for state, found in enumerate(moves):
            led = tuple((index, groups[target]) for index, target in sorted(found.items()))
            refined.append(numbers.setdefault((groups[state], led), len(numbers)))
        if len(numbers) == count:
            return refined
        groups, count = refined, len(numbers)


def _alike(moves: list[Moves], accepting: set[int]) -> list[int]:
    """Find for each state the last one that leads on exactly as it does."""
    found: dict[object, int] = {}
    leads = list(range(len(moves)))
    for state in reversed(range(len(moves))):
        led = tuple((index, leads[target]) for index, target in sorted(moves[state].items()))
        leads[state] = found.setdefault((state in accepting, led), state)
    return leads


def _renamed(
    moves: list[Moves], accepting: set[int], groups: list[int]
) -> tuple[list[Moves], set[int]]:
    numbers: dict[int, int] = {}
    for group in groups:  # the start's is the first
        numbers.setdefault(group, len(numbers))
    kept: dict[int, Moves] = {}
    for state, found in enumerate(moves):
        led = {index: numbers[groups[target]] for index, target in found.items()}
        kept.setdefault(numbers[groups[state]], led)
    return [kept[number] for number in range(len(kept))], {
        numbers[groups[state]] for state in accepting
    }
