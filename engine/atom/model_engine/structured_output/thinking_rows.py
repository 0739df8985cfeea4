"""ThinkingRows: sequences with a budget of reasoning tokens, which are made to end their reasoning.

Each is followed token by token; once its budget is spent, its mask allows only the next token of
the closing mark. Until one token before that it is an ordinary sequence, and after the mark it is
forgotten. Pure except for its books; belongs to the engine core's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.batch import ScheduledBatch, TokenMask
from atom.structured_outputs.mark_spellings import MarkSpellings
from atom.structured_outputs.thinking_budget import ThinkingBudget

logger = logging.getLogger(__name__)

_MOST_BEFORE = 40  # tokens of an answer in which the opening mark may be complete
_UNKNOWN_TOKENS = 1  # the most that a step in flight may add to the known tokens


class _At(Enum):
    BEFORE = auto()
    WITHIN = auto()
    FORCED = auto()  # the rest after a forced closing mark
    CHOOSING = auto()  # of any token but one
    BEHIND = auto()


class _Thought:
    """Follow one sequence's reasoning. matched: how many tokens of the mark looked for, or forced,
    the sequence ends with; spelled: how many bytes of a mark that may be written in other
    tokens."""

    __slots__ = ("_at", "_before", "_budget", "_matched", "_spelled", "_spent")

    def __init__(self, budget: ThinkingBudget) -> None:
        self._budget = budget
        self._at = _At.WITHIN if budget.opened else _At.BEFORE
        self._matched = self._spelled = 0
        self._before = 0  # tokens of the answer until it reasons
        self._spent = 0

    @property
    def over(self) -> bool:
        return self._at is _At.BEHIND

    @property
    def may_confine_next(self) -> bool:
        """Return whether the next token may not be free, whatever is in flight."""
        if self._at in (_At.FORCED, _At.CHOOSING):
            return True
        left = self._budget.tokens - self._spent
        return not self.over and left <= _UNKNOWN_TOKENS + len(self._budget.opening)

    @property
    def forced(self) -> int | None:
        """Return the only token that may come next; None for any."""
        if self._at is _At.FORCED:
            return self._budget.then[self._matched]
        if self._at is not _At.WITHIN or self._spent < self._budget.tokens:
            return None
        return self._budget.closing[self._matched]

    @property
    def excluded(self) -> int | None:
        """Return a token that may not come next."""
        return self._budget.excluded if self._at is _At.CHOOSING else None

    def push(self, token_id: int) -> None:
        if self._at is _At.BEHIND:
            return
        if self._at is _At.FORCED:
            self._push_forced(token_id)
        elif self._at is _At.WITHIN:
            self._spent += 1
            self._matched = _longest_match(self._budget.closing, self._matched, token_id)
            whole = self._matched == len(self._budget.closing)
            if self._spells(self._budget.closing_text, token_id) or whole:
                self._close()
        else:
            self._push_before(token_id)

    def _push_before(self, token_id: int) -> None:
        self._at = _At.BEFORE
        self._before += 1
        self._matched = _longest_match(self._budget.opening, self._matched, token_id)
        whole = self._matched == len(self._budget.opening)
        if self._spells(self._budget.opening_text, token_id) or whole:
            self._at, self._matched, self._spelled = _At.WITHIN, 0, 0
        elif not self._budget.reopens and self._is_content(token_id):
            self._at = _At.BEHIND

    def _spells(self, text: MarkSpellings | None, token_id: int) -> bool:
        """Follow a mark by its text; whether this token completes it."""
        if text is None:
            return False
        self._spelled = text.matched(self._spelled, token_id)
        return self._spelled == text.length

    def _is_content(self, token_id: int) -> bool:
        """Return whether the answer can no longer begin with the mark."""
        text = self._budget.opening_text
        if self._before >= _MOST_BEFORE:
            return True
        return bool(text and not (self._matched or self._spelled or token_id in text.blanks))

    def _close(self) -> None:
        self._matched = self._spelled = 0
        if self._spent > self._budget.tokens and self._budget.then:
            self._at = _At.FORCED
        else:
            self._at = _At.BEFORE if self._budget.reopens else _At.BEHIND
            self._spent -= len(self._budget.closing)

    def _push_forced(self, token_id: int) -> None:
        if token_id != self._budget.then[self._matched]:  # a grammar goes another way
            self._at, self._matched = _At.BEFORE, 0
            return
        self._matched += 1
        if self._matched == len(self._budget.then):
            self._matched = 0
            self._at = _At.BEHIND if self._budget.excluded is None else _At.CHOOSING


class ThinkingRows:
    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // 32)
        self._thoughts: dict[int, _Thought] = {}

    def __len__(self) -> int:
        return len(self._thoughts)

    def enter(self, request_id: int, budget: ThinkingBudget) -> None:
        self._thoughts[request_id] = _Thought(budget)

    def leave(self, request_ids: Iterable[int]) -> None:
        """Forget requests that have ended; others than these rows' are ignored."""
        for request_id in request_ids:
            self._thoughts.pop(request_id, None)

    def holds_any(self, batch: ScheduledBatch) -> bool:
        """Return whether a sequence gets a token in this batch that may have to be the mark's."""
        return bool(self._thoughts) and any(
            thought.may_confine_next
            for request_id in batch.req_ids[batch.samples].tolist()
            if (thought := self._thoughts.get(request_id)) is not None
        )

    def accept(self, runs: Iterable[tuple[int, list[int]]]) -> list[int]:
        """Follow the tokens of a step, by request. Returns the sequences that cannot be followed,
        and are forgotten."""
        lost: list[int] = []
        if not self._thoughts:
            return lost
        for request_id, token_ids in runs:
            thought = self._thoughts.get(request_id)
            if thought is None:
                continue
            try:
                for token_id in token_ids:
                    thought.push(token_id)
            except Exception:  # of this one request, and no reason to end the others
                logger.exception("the reasoning of request %d is not followed", request_id)
                lost.append(request_id)
            if thought.over or request_id in lost:
                del self._thoughts[request_id]
        return lost

    def confine(
        self, batch: ScheduledBatch, mask: TokenMask, apart: Sequence[int]
    ) -> tuple[TokenMask, list[int]]:
        """Add to `mask` the rows that must end their thought now. apart: sequences whose token of
        this step is dropped. Returns besides the requests that cannot be confined, and are
        forgotten."""
        lost: list[int] = []
        rows = {int(row): bits for row, bits in zip(mask.rows, mask.bits, strict=True)}
        confined = False
        for row, request_id in enumerate(batch.req_ids[batch.samples].tolist()):
            thought = None if request_id in apart else self._thoughts.get(request_id)
            try:
                bits = None if thought is None else _allowed(thought, self._words)
            except Exception:  # of this one request, and no reason to end the others
                logger.exception("the reasoning of request %d is not bounded", request_id)
                del self._thoughts[request_id]
                lost.append(request_id)
                continue
            if bits is None:
                continue
            known = rows.get(row)
            # A grammar of the same answer lets its thought end; one that does not goes first.
            if known is None or (known & bits).any():
                rows[row] = bits if known is None else known & bits
                confined = True
        if not confined:
            return mask, lost
        ordered = sorted(rows)
        bits_of_all = np.stack([rows[row] for row in ordered])
        return TokenMask(np.array(ordered, dtype=np.int32), bits_of_all), lost


def _longest_match(mark: Sequence[int], matched: int, token_id: int) -> int:
    """Return how many of the mark's first tokens a sequence ends with that had `matched` of them
    and gets this one. Marks are a few tokens long."""
    tail = [*mark[:matched], token_id]
    return next(
        length
        for length in range(len(tail), -1, -1)
        if tail[len(tail) - length :] == [*mark[:length]]
    )


def _allowed(thought: _Thought, words: int) -> NDArray[np.int32] | None:
    """Return the tokens that may come next; None for any."""
    if thought.forced is not None:
        return _only(thought.forced, words)
    return None if thought.excluded is None else ~_only(thought.excluded, words)


def _only(token_id: int, words: int) -> NDArray[np.int32]:
    bits = np.zeros(words, dtype=np.uint32)
    bits[token_id >> 5] = np.uint32(1) << np.uint32(token_id & 31)
    return bits.view(np.int32)
