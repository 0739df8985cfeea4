"""AnswerStore: the newest answers of an engine, by scope, as texts to draft from.

A scope is the adapter and the cache salt of a request, as in the prefix cache. Each has an index of
its own, so no search can meet another scope's tokens. The oldest answer of all scopes is evicted
first, once there are too many answers or tokens. Pure, torch-free; used by SuffixDrafter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from atom.speculation.suffix.token_index import SEPARATOR, TokenIndex

MOST_STORED_TOKENS = 1 << 21


class AnswerStore:
    """Store up to `most_answers` answers, and up to `most_tokens` tokens of them."""

    def __init__(self, most_answers: int, most_tokens: int = MOST_STORED_TOKENS) -> None:
        self._most_answers = most_answers
        self._most_tokens = most_tokens
        self._answers: deque[tuple[Hashable, int]] = deque()  # scope and tokens, the oldest first
        self._indexes: dict[Hashable, TokenIndex] = {}
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, scope: Hashable, text: NDArray[np.int32]) -> None:
        """Store an answer with the tokens before it; of a longer one than the store its end."""
        if not self._most_answers:
            return
        text = np.append(text[max(0, len(text) + 1 - self._most_tokens) :], np.int32(SEPARATOR))
        self._answers.append((scope, len(text)))
        self.num_tokens += len(text)
        while len(self._answers) > self._most_answers or self.num_tokens > self._most_tokens:
            self._evict()
        self._indexes.setdefault(scope, TokenIndex()).append(text)

    def index_of(self, scope: Hashable) -> TokenIndex | None:
        """Return the index of a scope's answers; None if the store has none of it."""
        return self._indexes.get(scope)

    def clear(self) -> None:
        """Drop all answers."""
        self._answers.clear()
        self._indexes.clear()
        self.num_tokens = 0

    def _evict(self) -> None:
        scope, count = self._answers.popleft()
        self.num_tokens -= count
        index = self._indexes[scope]
        index.drop_first(count)
        if not len(index):
            del self._indexes[scope]
