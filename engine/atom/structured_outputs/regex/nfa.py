"""Nfa: an expression without anchors as a nondeterministic automaton (Thompson's). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from atom.structured_outputs.regex.character_set import CharacterSet
from atom.structured_outputs.regex.syntax import (
    Anchor,
    Characters,
    Choice,
    Node,
    RegexError,
    Repeat,
    Sequence,
)

_MAX_STATES = 6000


class Nfa:
    """A nondeterministic finite automaton of a regex. start: the set of states before the first
    character; end: the state that accepts."""

    def __init__(self, node: Node) -> None:
        """Raises `RegexError` when it would be too large."""
        self._empty_moves: list[list[int]] = []
        self._moves: list[list[tuple[CharacterSet, int]]] = []
        first = self._state()
        self.end = self._add(node, first)
        self.start = self._closure([first])
        self.step = lru_cache(maxsize=None)(self._step)

    def sets(self) -> Iterable[CharacterSet]:
        """List every set of characters in it."""
        return (allowed for moves in self._moves for allowed, _ in moves)

    def _step(self, states: frozenset[int], code: int) -> frozenset[int]:
        return self._closure(
            target for state in states for allowed, target in self._moves[state] if code in allowed
        )

    def _closure(self, states: Iterable[int]) -> frozenset[int]:
        found = list(dict.fromkeys(states))
        seen = set(found)
        for state in found:
            fresh = [target for target in self._empty_moves[state] if target not in seen]
            seen.update(fresh)
            found.extend(fresh)
        return frozenset(seen)

    def _state(self) -> int:
        if len(self._moves) >= _MAX_STATES:
            raise RegexError("its counts are too large to be kept beside other conditions")
        self._moves.append([])
        self._empty_moves.append([])
        return len(self._moves) - 1

    def _add(self, node: Node, start: int) -> int:
        """Add the node's transitions from a state; return the state after it."""
        match node:
            case Characters():
                end = self._state()
                self._moves[start].append((node.allowed, end))
            case Sequence():
                end = start
                for part in node.parts:
                    end = self._add(part, end)
            case Choice():
                end = self._state()
                for option in node.options:
                    own = self._state()
                    self._empty_moves[start].append(own)
                    self._empty_moves[self._add(option, own)].append(end)
            case Repeat():
                end = self._repeat(node, start)
            case Anchor():
                raise AssertionError("anchors are worked out before")
        return end

    def _repeat(self, node: Repeat, start: int) -> int:
        for _ in range(node.low):
            start = self._add(node.node, start)
        end = self._state()
        self._empty_moves[start].append(end)
        if node.high is None:
            loop = self._state()
            self._empty_moves[start].append(loop)
            behind = self._add(node.node, loop)
            self._empty_moves[behind].extend((loop, end))
        for _ in range((node.high or 0) - node.low):
            start = self._add(node.node, start)
            self._empty_moves[start].append(end)
        return end
