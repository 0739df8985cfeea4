"""GuidedRows: which tokens each guided sequence may get next, step after step.

MatcherPool makes the masks while the engine continues; a step waits for the masks of its rows, but
only briefly. A sequence whose mask is late loses its place in the step and returns once the mask
arrives; one that was slow recently is only scheduled with its mask; one that exceeds its total time
ends with an error. Preemption does not affect masks: no token is forgotten then. Knows neither
scheduler nor device. Belongs to the engine core's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.batch import ScheduledBatch, TokenMask
from atom.model_engine.structured_output.grammar import Grammar
from atom.model_engine.structured_output.matcher_messages import MaskState
from atom.model_engine.structured_output.matcher_pool import TOO_SLOW, MaskNews
from atom.model_engine.structured_output.wait_budget import WaitBudget
from atom.sampling_params import SamplingParams
from atom.structured_outputs import StructuredOutputsParams

# Processor time of a sequence's masks in total, and of one before steps stop waiting for the
# sequence's next ones.
_TOTAL_SECONDS = 1.0
_TOTAL_SECONDS_PER_TOKEN = 0.002
_SLOW_SECONDS = 0.004
_SLOW_TOKENS = 16
_NO_TOKEN = (
    "the grammar and the request's other limits (allowed_token_ids, logit_bias, bad_words) "
    "together leave no token to go on with"
)


@dataclass(frozen=True, slots=True)
class GuidedEnd:
    """A sequence that must end although the scheduler does not see why. error: None when its text
    is complete, else the reason for its client, and param the field that is at fault."""

    request_id: int
    error: str | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class StepMask:
    """Hold the masks of a step's guided rows. late: sequences without a mask yet, whose token of
    this step is dropped; apart: sequences that take part in no further step until `resumed` names
    them, as do `late` ones; ends: sequences that end now."""

    mask: TokenMask
    late: Sequence[int] = ()
    apart: Sequence[int] = ()
    ends: Sequence[GuidedEnd] = ()


@dataclass(frozen=True, slots=True)
class GuidedNews:
    """List the changes since the last call: sequences that were kept apart and now have a mask, and
    sequences that end now."""

    resumed: Sequence[int] = ()
    ends: Sequence[GuidedEnd] = ()


_NO_NEWS = GuidedNews()


class MaskSource(Protocol):
    """Make the masks of guided sequences; MatcherPool implements and documents the methods."""

    def enter(self, request_id: int, grammar: Grammar, tokens: Sequence[int]) -> None: ...

    def accept(self, tokens: Iterable[tuple[int, int]]) -> None: ...

    def leave(self, request_ids: Iterable[int]) -> None: ...

    def mask(self, request_id: int) -> NDArray[np.int32]: ...

    def poll(self, timeout_seconds: float) -> list[MaskNews]: ...


@dataclass(slots=True)
class _Guide:
    """Hold the state of one guided sequence. early_ends: tokens that are forbidden in the first
    `min_tokens` tokens. ready: its next mask has arrived. apart: it takes part in no step.
    slow_until: number of tokens up to which steps do not wait for its masks."""

    asked: StructuredOutputsParams
    min_tokens: int
    early_ends: NDArray[np.int64]
    num_tokens: int = 0
    cpu_seconds: float = 0.0
    slow_until: int = 0
    ready: bool = False
    apart: bool = True
    end: GuidedEnd | None = None

    @property
    def too_slow(self) -> bool:
        return self.cpu_seconds > _TOTAL_SECONDS + _TOTAL_SECONDS_PER_TOKEN * self.num_tokens


class GuidedRows:
    def __init__(
        self,
        vocab_size: int,
        end_token_ids: Iterable[int],
        source: MaskSource,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """ended_for_work: how many sequences were ended because their masks took too much."""
        self._words = -(-vocab_size // 32)
        self._end_token_ids = tuple(end_token_ids)
        self._source = source
        self._clock = clock
        self._wait_budget = WaitBudget(clock)
        self._guides: dict[int, _Guide] = {}
        self._resumed: list[int] = []
        self._ends: list[GuidedEnd] = []
        self.ended_for_work = 0

    def __len__(self) -> int:
        return len(self._guides)

    # ---- sequences ----------------------------------------------------------------------------

    def enter(
        self, request_id: int, grammar: Grammar, params: SamplingParams, tokens: Sequence[int] = ()
    ) -> None:
        """Follow a new sequence, which has these tokens of its answer already. It is apart until
        its first mask is there."""
        asked = params.structured_outputs
        assert asked is not None
        ends = np.array([*self._end_token_ids, *params.stop_token_ids], dtype=np.int64)
        self._guides[request_id] = _Guide(asked, params.min_tokens, ends, len(tokens))
        self._source.enter(request_id, grammar, tokens)

    def leave(self, request_ids: Iterable[int]) -> None:
        """Forget requests that have ended; others than guided ones are ignored."""
        left = [number for number in request_ids if self._guides.pop(number, None) is not None]
        if left:
            self._source.leave(left)

    def holds_any(self, batch: ScheduledBatch) -> bool:
        """Return whether a guided sequence gets a token in this batch."""
        return bool(self._guides) and not self._guides.keys().isdisjoint(
            batch.req_ids[batch.samples].tolist()
        )

    def accept(self, runs: Iterable[tuple[int, list[int]]]) -> list[GuidedEnd]:
        """Follow the tokens of a step, by request; who must end now. Call `leave` for these too."""
        if not self._guides:
            return []
        ends, accepted = [], []
        for request_id, token_ids in runs:
            guide = self._guides.get(request_id)
            if guide is None:
                continue
            (token_id,) = token_ids  # a mask covers no token after the next
            # Only when nothing was allowed: other limits of the request forbade all that was left.
            if guide.ready and not _allows(self._source.mask(request_id), token_id):
                ends.append(_end(request_id, guide, _NO_TOKEN))
                continue
            guide.num_tokens += 1
            guide.ready = False
            accepted.append((request_id, token_id))
        if accepted:
            self._source.accept(accepted)
        return ends

    @property
    def has_news(self) -> bool:
        """Return whether `news` has some at once, without word from the masks' source."""
        return bool(self._resumed or self._ends)

    # ---- masks --------------------------------------------------------------------------------

    def news(self) -> GuidedNews:
        """Return the changes since the last call. Call `leave` for the sequences that end."""
        if self._guides:
            self._poll(0.0)
        if not self.has_news:
            return _NO_NEWS
        resumed, self._resumed = self._resumed, []
        return GuidedNews(
            list(filter(self._is_there, resumed)), self._take_ends(self._guides.keys())
        )

    def mask(self, batch: ScheduledBatch) -> StepMask:
        """Build the mask for the batch's guided rows that sample, when all their tokens are known.
        Call `leave` for the rows that end."""
        guided = [
            (row, request_id, guide)
            for row, request_id in enumerate(batch.req_ids[batch.samples].tolist())
            if (guide := self._guides.get(request_id)) is not None
        ]
        self._wait_for([guide for _, _, guide in guided])
        late, apart = [], []
        masked: list[tuple[int, NDArray[np.int32], _Guide]] = []
        for row, request_id, guide in guided:
            if guide.end is not None:
                continue
            if not guide.ready:
                guide.apart = True
                late.append(request_id)
                continue
            masked.append((row, self._source.mask(request_id), guide))
            if guide.num_tokens < guide.slow_until:
                guide.apart = True
                apart.append(request_id)
        ends = self._take_ends({request_id for _, request_id, _ in guided})
        return StepMask(self._packed(masked), late, apart, ends)

    def no_mask(self) -> StepMask:
        """Build the mask for a batch that holds no guided row."""
        return StepMask(self._packed(()))

    def _packed(self, masked: Sequence[tuple[int, NDArray[np.int32], _Guide]]) -> TokenMask:
        bits = np.empty((len(masked), self._words), dtype=np.int32)
        for index, (_, allowed, guide) in enumerate(masked):
            bits[index] = allowed
            if guide.num_tokens < guide.min_tokens:
                _forbid_unless_last(bits[index], guide.early_ends)
        return TokenMask(np.array([row for row, _, _ in masked], dtype=np.int32), bits)

    def _wait_for(self, guides: Sequence[_Guide]) -> None:
        """Wait until all are ready or end, or the step has waited enough."""

        def open_ones() -> bool:
            return any(not guide.ready and guide.end is None for guide in guides)

        self._poll(0.0)
        if not open_ones():
            return
        with self._wait_budget.wait() as left:
            while open_ones() and (seconds := left()) > 0:
                self._poll(seconds)

    def _poll(self, timeout_seconds: float) -> None:
        for news in self._source.poll(timeout_seconds):
            guide = self._guides.get(news.request_id)
            if guide is not None and guide.end is None:
                self._take(guide, news)

    def _take(self, guide: _Guide, news: MaskNews) -> None:
        guide.ready = news.state is MaskState.READY
        guide.cpu_seconds += news.cpu_seconds
        if news.cpu_seconds > _SLOW_SECONDS:
            guide.slow_until = guide.num_tokens + _SLOW_TOKENS
        reason = _fault(guide, news)
        if reason is not None or news.state is MaskState.COMPLETE:
            self.ended_for_work += reason == TOO_SLOW
            guide.end = _end(news.request_id, guide, reason)
            self._ends.append(guide.end)
        elif guide.ready and guide.apart:
            guide.apart = False
            self._resumed.append(news.request_id)

    def _is_there(self, request_id: int) -> bool:
        guide = self._guides.get(request_id)
        return guide is not None and guide.end is None

    def _take_ends(self, request_ids: Set[int]) -> list[GuidedEnd]:
        """Take the ends of these requests; ends of sequences that have left are dropped."""
        ends = [end for end in self._ends if end.request_id in self._guides]
        self._ends = [end for end in ends if end.request_id not in request_ids]
        return [end for end in ends if end.request_id in request_ids]


def _fault(guide: _Guide, news: MaskNews) -> str | None:
    """Return why the sequence cannot continue, or None."""
    if news.error is not None:
        return news.error
    if guide.too_slow or news.state is MaskState.COSTLY:
        return TOO_SLOW
    if news.state is MaskState.REFUSED:
        return _NO_TOKEN if guide.num_tokens else "no text satisfies it"
    return None


def _end(request_id: int, guide: _Guide, reason: str | None) -> GuidedEnd:
    if reason is None:
        return GuidedEnd(request_id)
    error = guide.asked.refusal(reason)
    return GuidedEnd(request_id, str(error), error.param)


def _allows(mask: NDArray[np.int32], token_id: int) -> bool:
    return bool(int(mask[token_id >> 5]) >> (token_id & 31) & 1)


def _forbid_unless_last(bits: NDArray[np.int32], token_ids: NDArray[np.int64]) -> None:
    """Clear the tokens' bits in a row of the mask, unless no token would remain: a complete
    grammar overrides min_tokens."""
    words = bits.view(np.uint32)
    before = words.copy()
    bit = np.uint32(1) << (token_ids % 32).astype(np.uint32)
    np.bitwise_and.at(words, token_ids // 32, ~bit)
    if not words.any():
        words[:] = before
