"""Lockstep: how ranks with schedulers of their own agree on steps that they compute together.

Each rank says one word for each step, how many tokens it has for it, while the step before is still
computed; with everyone's word each knows what the others know, and all decide alike. A rank that
has nothing stays silent, and sleeps, until another's word calls it: then it says none. So there is
no step without tokens, nothing to agree on at the end of work, and no message but these. Pure: the
words travel by wire/peer_mesh.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from atom.errors import AtomError
from atom.model_engine.wire.peer_mesh import Word


class LockstepError(AtomError):
    """Ranks are not where they should be of each other: a fault of ours."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Hold what all ranks know of a step. capacity: tokens that each sends to every other, padding
    included; None where they are more than the largest bucket, and go where they are wanted."""

    step: int
    capacity: int | None


class Lockstep:
    """One rank's view. buckets: sizes that steps of few tokens are padded to, ascending, the same
    on every rank."""

    def __init__(self, rank: int, size: int, buckets: Sequence[int]) -> None:
        self._rank = rank
        self._buckets = buckets
        self.step = 0  # the next to be agreed on
        self._peers = frozenset(range(size)) - {rank}
        self._words: dict[int, dict[int, int]] = {}  # step → rank → tokens

    def speak(self, tokens: int) -> Word:
        """Make this rank's word for the next step."""
        self._words.setdefault(self.step, {})[self._rank] = tokens
        return Word(self.step, tokens)

    def hear(self, peer: int, word: Word) -> None:
        """Take another's word; it is for the next step, or for the one behind it of a rank that was
        faster to know everyone's. Raises `LockstepError` on another."""
        said = self._words.setdefault(word.step, {})
        if peer in said or not 0 <= word.step - self.step <= 1:
            raise LockstepError(
                f"rank {peer} speaks of step {word.step}, rank {self._rank} is at {self.step}"
            )
        said[peer] = word.tokens

    @property
    def is_called(self) -> bool:
        """Return whether another rank has tokens for the next step."""
        return any(self._words.get(self.step, {}).values())

    @property
    def missing(self) -> frozenset[int]:
        """Ranks that have not spoken of the next step."""
        return self._peers - self._words.get(self.step, {}).keys()

    def agree(self) -> Agreement:
        """Return what everyone's words come to; the next step is the one behind it."""
        words = self._words.pop(self.step)
        assert len(words) == len(self._peers) + 1, "every rank has spoken"
        agreed = Agreement(self.step, self._capacity(max(words.values())))
        self.step += 1
        return agreed

    def _capacity(self, most: int) -> int | None:
        at = bisect_left(self._buckets, most)
        return self._buckets[at] if at < len(self._buckets) else None
