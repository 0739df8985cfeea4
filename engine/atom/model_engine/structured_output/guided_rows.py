"""GuidedRows: which tokens each guided sequence may get next, step after step.

One matcher (xgrammar's) per sequence follows its tokens as they become known and fills the mask of
its next one. Preemption does not concern it: no token is forgotten then. Knows neither scheduler
nor device. Belongs to the engine core's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.batch import ScheduledBatch, TokenMask
from atom.sampling_params import SamplingParams
from atom.structured_outputs import StructuredOutputsParams

# A grammar can be small and yet slow to follow (very ambiguous ones). Such a sequence would slow
# all others down; it ends once its masks have cost this much, plus a share per token.
_MASK_SECONDS = 2.0
_MASK_SECONDS_PER_TOKEN = 0.002


@dataclass(frozen=True, slots=True)
class GuidedEnd:
    """A sequence that must end although the scheduler does not see why. error: None when its text
    is complete, else the reason for its client, and param the field that is at fault."""

    request_id: int
    error: str | None = None
    param: str | None = None


class Matcher(Protocol):
    """What is used of xgrammar's GrammarMatcher."""

    def fill_next_token_bitmask(self, bitmask: NDArray[np.int32], index: int) -> bool:
        """Row `index` of bitmask [rows, words] becomes what may come next."""
        ...

    def accept_token(self, token_id: int) -> bool:
        """Go on by this token; False, and nothing else, when it may not come."""
        ...

    def is_terminated(self) -> bool: ...


@dataclass(slots=True)
class _Guide:
    """early_ends: tokens that may not come before `min_tokens` tokens are there."""

    asked: StructuredOutputsParams
    matcher: Matcher
    min_tokens: int
    early_ends: NDArray[np.int64]
    num_tokens: int = 0
    mask_seconds: float = 0.0

    @property
    def too_slow(self) -> bool:
        return self.mask_seconds > _MASK_SECONDS + _MASK_SECONDS_PER_TOKEN * self.num_tokens


class GuidedRows:
    def __init__(
        self,
        vocab_size: int,
        end_token_ids: Iterable[int],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._words = -(-vocab_size // 32)
        self._end_token_ids = tuple(end_token_ids)
        self._clock = clock
        self._guides: dict[int, _Guide] = {}

    def __len__(self) -> int:
        return len(self._guides)

    def enter(self, request_id: int, matcher: Matcher, params: SamplingParams) -> None:
        """Follow a new sequence, at whose beginning the matcher stands."""
        asked = params.structured_outputs
        assert asked is not None
        ends = [*self._end_token_ids, *params.stop_token_ids]
        self._guides[request_id] = _Guide(
            asked, matcher, params.min_tokens, np.array(ends, dtype=np.int64)
        )

    def leave(self, request_ids: Iterable[int]) -> None:
        """These have ended; others than guided ones are ignored."""
        for request_id in request_ids:
            self._guides.pop(request_id, None)

    def holds_any(self, batch: ScheduledBatch) -> bool:
        """Whether a guided sequence gets a token in this batch."""
        return bool(self._guides) and not self._guides.keys().isdisjoint(
            batch.req_ids[batch.samples].tolist()
        )

    def accept(self, runs: Iterable[tuple[int, list[int]]]) -> list[GuidedEnd]:
        """Follow the tokens of a step, by request; who must end now. Call `leave` for these too."""
        if not self._guides:
            return []
        ends = []
        for request_id, token_ids in runs:
            guide = self._guides.get(request_id)
            if guide is not None:
                (token_id,) = token_ids  # a mask says nothing of the token behind the next
                end = self._accept(request_id, guide, token_id)
                ends += [] if end is None else [end]
        return ends

    def _accept(self, request_id: int, guide: _Guide, token_id: int) -> GuidedEnd | None:
        guide.num_tokens += 1
        if not guide.matcher.accept_token(token_id):
            # Only when nothing was allowed: other limits of the request forbade all that was left.
            return _error(
                request_id,
                guide,
                "the grammar and the request's other limits (allowed_token_ids, logit_bias, "
                "bad_words) together leave no token to go on with",
            )
        if guide.too_slow:
            return _error(
                request_id,
                guide,
                "following the grammar takes too long per token; make it less ambiguous: fewer "
                "nested repetitions",
            )
        return GuidedEnd(request_id) if guide.matcher.is_terminated() else None

    def mask(self, batch: ScheduledBatch) -> TokenMask:
        """For the batch's rows that sample and are guided, when all their tokens are known."""
        guided = [
            (row, self._guides[request_id])
            for row, request_id in enumerate(batch.req_ids[batch.samples].tolist())
            if request_id in self._guides
        ]
        bits = np.empty((len(guided), self._words), dtype=np.int32)
        for index, (_, guide) in enumerate(guided):
            started = self._clock()
            guide.matcher.fill_next_token_bitmask(bits, index)
            guide.mask_seconds += self._clock() - started
            if guide.num_tokens < guide.min_tokens:
                _forbid_unless_last(bits[index], guide.early_ends)
        return TokenMask(np.array([row for row, _ in guided], dtype=np.int32), bits)


def _error(request_id: int, guide: _Guide, reason: str) -> GuidedEnd:
    error = guide.asked.refusal(reason)
    return GuidedEnd(request_id, str(error), error.param)


def _forbid_unless_last(bits: NDArray[np.int32], token_ids: NDArray[np.int64]) -> None:
    """Take these tokens out of a row of the mask, unless it allows no others: min_tokens gives way
    to a grammar that is complete."""
    words = bits.view(np.uint32)
    before = words.copy()
    bit = np.uint32(1) << (token_ids % 32).astype(np.uint32)
    np.bitwise_and.at(words, token_ids // 32, ~bit)
    if not words.any():
        words[:] = before
