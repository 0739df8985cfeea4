"""ThinkingRows: sequences that may reason for so many tokens, and are then made to end it.

Each is followed token by token; once its budget is spent, its mask allows nothing but the next
token of the closing mark. Until a token before that it is a sequence like any other, and behind the
mark it is forgotten. Pure but for its books; belongs to the engine core's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.batch import ScheduledBatch, TokenMask
from atom.structured_outputs.thinking_budget import ThinkingBudget

_MOST_BEFORE = 8  # tokens of an answer in which the opening mark may be complete
_UNKNOWN_TOKENS = 1  # that a step in flight may add to what is known


class _At(Enum):
    BEFORE = auto()
    WITHIN = auto()
    BEHIND = auto()


class _Thought:
    """One sequence's. matched: how many tokens of the mark that is looked for it ends with."""

    __slots__ = ("_at", "_budget", "_matched", "_seen")

    def __init__(self, budget: ThinkingBudget) -> None:
        self._budget = budget
        self._at = _At.WITHIN if budget.opened else _At.BEFORE
        self._matched = 0
        self._seen = 0  # tokens since the answer's or the thought's beginning

    @property
    def over(self) -> bool:
        return self._at is _At.BEHIND

    @property
    def may_force_next(self) -> bool:
        """Return whether the next token may have to be of the mark, whatever is in flight."""
        left = self._budget.tokens - (self._seen if self._at is _At.WITHIN else 0)
        return not self.over and left <= _UNKNOWN_TOKENS + len(self._budget.opening)

    @property
    def forced(self) -> int | None:
        """The one token that may come next; None for any."""
        if self._at is not _At.WITHIN or self._seen < self._budget.tokens:
            return None
        return self._budget.closing[self._matched]

    def push(self, token_id: int) -> None:
        self._seen += 1
        before = self._at is _At.BEFORE
        mark = self._budget.opening if before else self._budget.closing
        self._matched = _longest_match(mark, self._matched, token_id)
        if self._matched == len(mark):
            self._at = _At.WITHIN if before else _At.BEHIND
            self._matched = self._seen = 0
        elif before and self._seen >= _MOST_BEFORE:
            self._at = _At.BEHIND


class ThinkingRows:
    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // 32)
        self._thoughts: dict[int, _Thought] = {}

    def __len__(self) -> int:
        return len(self._thoughts)

    def enter(self, request_id: int, budget: ThinkingBudget) -> None:
        self._thoughts[request_id] = _Thought(budget)

    def leave(self, request_ids: Iterable[int]) -> None:
        """These have ended; others than these rows' are ignored."""
        for request_id in request_ids:
            self._thoughts.pop(request_id, None)

    def holds_any(self, batch: ScheduledBatch) -> bool:
        """Return whether a sequence gets a token in this batch that may have to be the mark's."""
        return bool(self._thoughts) and any(
            thought.may_force_next
            for request_id in batch.req_ids[batch.samples].tolist()
            if (thought := self._thoughts.get(request_id)) is not None
        )

    def accept(self, runs: Iterable[tuple[int, list[int]]]) -> None:
        """Follow the tokens of a step, by request."""
        if not self._thoughts:
            return
        for request_id, token_ids in runs:
            thought = self._thoughts.get(request_id)
            if thought is None:
                continue
            for token_id in token_ids:
                thought.push(token_id)
            if thought.over:
                del self._thoughts[request_id]

    def confine(self, batch: ScheduledBatch, mask: TokenMask, apart: Sequence[int]) -> TokenMask:
        """`mask`, with the rows in it that must end their thought now. apart: sequences whose token
        of this step is dropped."""
        forced = {
            row: token
            for row, request_id in enumerate(batch.req_ids[batch.samples].tolist())
            if request_id not in apart
            and (thought := self._thoughts.get(request_id)) is not None
            and (token := thought.forced) is not None
        }
        if not forced:
            return mask
        rows = {int(row): bits for row, bits in zip(mask.rows, mask.bits, strict=True)}
        for row, token in forced.items():
            bits = _only(token, self._words)
            known = rows.get(row)
            # A grammar of the same answer lets its thought end; one that does not goes first.
            if known is None or (known & bits).any():
                rows[row] = bits
        ordered = sorted(rows)
        return TokenMask(
            np.array(ordered, dtype=np.int32), np.stack([rows[row] for row in ordered])
        )


def _longest_match(mark: Sequence[int], matched: int, token_id: int) -> int:
    """Return how many of the mark's first tokens a sequence ends with that had `matched` of them
    and gets this one. Marks are a few tokens long."""
    tail = [*mark[:matched], token_id]
    return next(
        length
        for length in range(len(tail), -1, -1)
        if tail[len(tail) - length :] == [*mark[:length]]
    )


def _only(token_id: int, words: int) -> NDArray[np.int32]:
    bits = np.zeros(words, dtype=np.uint32)
    bits[token_id >> 5] = np.uint32(1) << np.uint32(token_id & 31)
    return bits.view(np.int32)
