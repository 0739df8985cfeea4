"""Automaton: the texts that fulfil several conditions at once, as a small deterministic automaton.

Conditions are expressions (wanted or not), bounds on the length, and divisibility of the digits. It
is built state by state within a bound, so that an empty language is detected and one that is too
large is refused. Pure; used if one expression alone does not suffice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from atom.structured_outputs.regex.character_set import (
    DIGITS,
    EVERY,
    CharacterSet,
    of_code,
    of_ranges,
)
from atom.structured_outputs.regex.merging import Moves, merged
from atom.structured_outputs.regex.nfa import Nfa
from atom.structured_outputs.regex.syntax import Node, RegexError

MAX_STATES = 1000


class Condition(Protocol):
    """A condition on a text, checked character by character."""

    @property
    def start(self) -> Hashable:
        """Give the state before the first character."""

    def sets(self) -> Iterable[CharacterSet]:
        """Return the sets that the condition distinguishes: it treats characters in the same sets
        alike."""

    def step(self, state: Any, code: int) -> Hashable:
        """Return the state after a character; None if no text continues from there."""

    def accepts(self, state: Any) -> bool:
        """Return whether the text may end there."""


class Expression:
    """The text is (wanted), or is not, of an expression's language."""

    def __init__(self, node: Node, *, wanted: bool = True) -> None:
        self._nfa = Nfa(node)
        self._wanted = wanted
        self.start = self._nfa.start

    def sets(self) -> Iterable[CharacterSet]:
        return self._nfa.sets()

    def step(self, state: frozenset[int], code: int) -> Hashable:
        found = self._nfa.step(state, code)
        return None if self._wanted and not found else found

    def accepts(self, state: frozenset[int]) -> bool:
        return (self._nfa.end in state) == self._wanted


@dataclass(frozen=True, slots=True)
class Length:
    """Accepts low to high characters; high None: without end."""

    low: int
    high: int | None
    start: int = 0

    def sets(self) -> Iterable[CharacterSet]:
        return ()

    def step(self, state: int, code: int) -> Hashable:
        if self.high is None:
            return min(state + 1, self.low)
        return None if state == self.high else state + 1

    def accepts(self, state: int) -> bool:
        return state >= self.low


@dataclass(frozen=True, slots=True)
class Divisible:
    """The text's digits, whatever else is between them, make a multiple of a number."""

    divisor: int
    start: int = 0

    def sets(self) -> Iterable[CharacterSet]:
        return (of_code(code) for first, last in DIGITS.ranges for code in range(first, last + 1))

    def step(self, state: int, code: int) -> Hashable:
        return (state * 10 + code - 48) % self.divisor if code in DIGITS else state

    def accepts(self, state: int) -> bool:
        return state == 0


@dataclass(frozen=True, slots=True)
class Automaton:
    """A deterministic finite automaton. moves: by state, from target to characters; state 0 is the
    start, and from each the text can be brought to an end. No states: no text at all."""

    moves: tuple[dict[int, CharacterSet], ...]
    accepting: frozenset[int]

    @property
    def is_empty(self) -> bool:
        return not self.moves

    def accepts(self, text: str) -> bool:
        state: int | None = None if self.is_empty else 0
        for character in text:
            if state is None:
                return False
            moves = self.moves[state].items()
            state = next((to for to, allowed in moves if ord(character) in allowed), None)
        return state in self.accepting


def build_automaton(conditions: Sequence[Condition]) -> Automaton:
    """Build the automaton of the conditions. Raises `RegexError` if it would be too large."""
    classes = _classes(found for condition in conditions for found in condition.sets())
    samples = [allowed.ranges[0][0] for allowed in classes]
    start = tuple(condition.start for condition in conditions)
    numbers: dict[tuple[Hashable, ...], int] = {start: 0}
    moves: list[Moves] = []
    pending = [start]
    for state in pending:
        found: Moves = {}
        for index, code in enumerate(samples):
            reached = _step(conditions, state, code)
            if reached is None:
                continue
            if reached not in numbers:
                numbers[reached] = len(numbers)
                pending.append(reached)
            found[index] = numbers[reached]
        moves.append(found)
        if len(numbers) > MAX_STATES:
            raise RegexError(
                "these conditions on one text are too large to be kept together; make its bounds "
                "on length smaller, or its pattern simpler"
            )
    accepting = {
        numbers[state]
        for state in pending
        if all(one.accepts(part) for one, part in zip(conditions, state, strict=True))
    }
    moves, accepting = merged(*_trimmed(moves, accepting))
    return Automaton(tuple(_by_target(found, classes) for found in moves), frozenset(accepting))


def _by_target(moves: Moves, classes: Sequence[CharacterSet]) -> dict[int, CharacterSet]:
    ranges: dict[int, list[tuple[int, int]]] = {}
    for index, target in moves.items():
        ranges.setdefault(target, []).extend(classes[index].ranges)
    return {target: of_ranges(found) for target, found in ranges.items()}


def _step(
    conditions: Sequence[Condition], state: tuple[Hashable, ...], code: int
) -> tuple[Hashable, ...] | None:
    reached = []
    for condition, part in zip(conditions, state, strict=True):
        found = condition.step(part, code)
        if found is None:
            return None
        reached.append(found)
    return tuple(reached)


def _classes(sets: Iterable[CharacterSet]) -> list[CharacterSet]:
    """Partition all characters into the fewest sets that distinguish the given ones."""
    known = list(dict.fromkeys((*sets, EVERY)))
    cuts = sorted({cut for one in known for first, last in one.ranges for cut in (first, last + 1)})
    members: dict[int, list[int]] = {}
    for index, one in enumerate(known):
        for first, last in one.ranges:
            for at in range(bisect_left(cuts, first), bisect_left(cuts, last + 1)):
                members.setdefault(at, []).append(index)
    segments = list(pairwise(cuts))
    classes: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for at, found in members.items():
        first, after = segments[at]
        classes.setdefault(tuple(found), []).append((first, after - 1))
    return [allowed for ranges in classes.values() if (allowed := of_ranges(ranges))]


def _trimmed(moves: list[Moves], accepting: set[int]) -> tuple[list[Moves], set[int]]:
    """Keep only states from which the text can end; no states if the start is not one of them."""
    sources: dict[int, set[int]] = {}
    for state, found in enumerate(moves):
        for target in found.values():
            sources.setdefault(target, set()).add(state)
    alive, pending = set(accepting), list(accepting)
    for state in pending:
        fresh = sources.get(state, set()) - alive
        alive.update(fresh)
        pending.extend(fresh)
    if 0 not in alive:
        return [], set()
    kept = sorted(alive)
    numbers = {state: number for number, state in enumerate(kept)}
    trimmed = [
        {index: numbers[target] for index, target in moves[state].items() if target in alive}
        for state in kept
    ]
    return trimmed, {numbers[state] for state in accepting}
