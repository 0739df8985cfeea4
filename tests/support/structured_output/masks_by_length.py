"""Masks that need no grammar: made at once, or late by chance, for tests of what follows of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.structured_output.grammar import Grammar
from atom.model_engine.structured_output.guided_rows import GuidedRows, StepMask
from atom.model_engine.structured_output.matcher_messages import MaskState
from atom.model_engine.structured_output.matcher_pool import MaskNews

SLOW_SECONDS = 0.01  # of one call: not waited for the next time


class EveryFifth:
    """Allows the tokens whose id leaves the answer's length so far as remainder by five.

    late: of so many polls one brings a mask, by chance, and as many masks are slow; 0 for at once.
    """

    def __init__(self, vocab_size: int, *, late: int = 0, seed: int = 0) -> None:
        self._tokens = np.arange(-(-vocab_size // 32) * 32)
        self._lengths: dict[int, int] = {}
        self._due: list[MaskNews] = []
        self._late = late
        self._random = Random(seed)

    def enter(self, request_id: int, grammar: Grammar, tokens: Sequence[int] = ()) -> None:
        self._lengths[request_id] = len(tokens)
        self._due.append(MaskNews(request_id, MaskState.READY))

    def accept(self, tokens: Iterable[tuple[int, int]]) -> None:
        for request_id, _ in tokens:
            self._lengths[request_id] += 1
            slow = self._late and self._random.randrange(self._late) == 0
            self._due.append(MaskNews(request_id, MaskState.READY, SLOW_SECONDS if slow else 0.0))

    def leave(self, request_ids: Iterable[int]) -> None:
        for request_id in request_ids:
            del self._lengths[request_id]

    def mask(self, request_id: int) -> NDArray[np.int32]:
        allowed = self._tokens % 5 == self._lengths[request_id] % 5
        return np.packbits(allowed, bitorder="little").view(np.int32)

    def poll(self, timeout_seconds: float) -> list[MaskNews]:
        due = [not self._late or self._random.randrange(self._late) == 0 for _ in self._due]
        news = [item for item, now in zip(self._due, due, strict=True) if now]
        self._due = [item for item, now in zip(self._due, due, strict=True) if not now]
        return news


class LateRows(GuidedRows):
    """Rows of such masks. A second passes whenever the clock is looked at: no step waits for long
    on it. late, apart: how often a row was set back, and kept apart for being slow."""

    def __init__(self, vocab_size: int, *, late: int = 0, seed: int = 0) -> None:
        seconds = itertools.count()
        source = EveryFifth(vocab_size, late=late, seed=seed)
        super().__init__(vocab_size, [], source, clock=lambda: float(next(seconds)))
        self.late = self.apart = 0

    def mask(self, batch: ScheduledBatch) -> StepMask:
        mask = super().mask(batch)
        self.late += len(mask.late)
        self.apart += len(mask.apart)
        return mask
