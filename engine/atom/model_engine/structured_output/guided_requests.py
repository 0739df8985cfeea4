"""GuidedRequests: requests for structured output, from arrival to their last token.

Composes the compiler, the gate that holds a request until its grammar is there, the processes that
follow grammars and the rows that wait for their masks. Costs nothing until the first such request
comes: no thread, no process, no import. Owned by StepPipeline; belongs to the engine core's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.request import FinishReason, Request
from atom.model_engine.structured_output.compile_messages import CompilerSetup
from atom.model_engine.structured_output.grammar_compiler import GrammarCompiler
from atom.model_engine.structured_output.grammar_gate import GrammarGate, Passed
from atom.model_engine.structured_output.guided_rows import GuidedEnd, GuidedRows, StepMask
from atom.model_engine.structured_output.mask_arena import MaskArena
from atom.model_engine.structured_output.matcher_pool import MatcherPool
from atom.model_engine.structured_output.thinking_rows import ThinkingRows
from atom.model_engine.wire.engine_protocol import FinishedRow, aborted_row

GRAMMAR_COMPLETE = "grammar_complete"


@dataclass(frozen=True, slots=True)
class GuidedTurn:
    """Hold the guided requests' changes at the start of a step. admitted: requests that may be
    scheduled now; finished: requests that ended before scheduling; resumed: sequences that may take
    part in steps again; ends: sequences that end now."""

    admitted: list[Request] = field(default_factory=list)
    finished: list[FinishedRow] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    ends: list[GuidedEnd] = field(default_factory=list)


_NOTHING = GuidedTurn()


def _lost(request_id: int) -> GuidedEnd:
    """End a sequence whose reasoning cannot be followed, by its own fault or ours."""
    return GuidedEnd(request_id, "its thinking_token_budget could not be kept")


class GuidedRequests:
    """Holds all requests whose tokens are confined. rows: those whose grammar is there. thinking:
    those whose reasoning is bounded, which wait for nothing. wake_fd: readable when `take` has
    something to give, for a loop that sleeps."""

    def __init__(self, setup: CompilerSetup) -> None:
        arena = MaskArena(setup.vocab_size)
        setup = msgspec.structs.replace(setup, masks_fd=arena.fd)
        self._compiler = GrammarCompiler(setup, lambda: self._pool.notify())
        self._pool = MatcherPool(arena, self._compiler.open_process)
        self.rows = GuidedRows(setup.vocab_size, setup.end_token_ids, self._pool)
        self.thinking = ThinkingRows(setup.vocab_size)
        self._gate = GrammarGate(self._compiler)
        self._passed: deque[Passed] = deque()  # for whom there is no room yet
        self._entered: dict[int, Request] = {}  # whose first mask is not there yet

    @property
    def wake_fd(self) -> int:
        return self._pool.wake_fd

    @property
    def num_held(self) -> int:
        """Return how many wait for their grammar, or their first mask."""
        return len(self._gate) + len(self._passed) + len(self._entered)

    @property
    def open_requests(self) -> tuple[int, ...]:
        """Return the ids of the requests that wait for their grammar or their first mask."""
        passed = (item.request.id for item in self._passed)
        return (*self._gate.open_requests, *passed, *self._entered)

    @property
    def has_news(self) -> bool:
        """Return whether `take` has results that `wake_fd` no longer signals: a step that waits for
        masks reads all other events too."""
        if self.rows.has_news or self._gate.has_any_ready:
            return True
        return bool(self._passed) and self._pool.has_room

    @property
    def ended_for_work(self) -> int:
        """Return how many sequences were ended because following their grammar took too much."""
        return self.rows.ended_for_work

    def hold(self, request: Request) -> None:
        """Take a request that asks for structured output; `take` gives it back."""
        self._gate.hold(request)

    def take(self) -> GuidedTurn:
        """Return the changes since the last call. Rows that end have left."""
        if not len(self.rows) and not self.num_held:
            return _NOTHING
        turn = GuidedTurn()
        self._take_news(turn)
        if len(self._gate) or self._passed:
            self._let_in(turn)
        return turn

    # ---- sequences of a step ------------------------------------------------------------------

    def confines(self, batch: ScheduledBatch) -> bool:
        """Return whether a sequence gets a token in this batch that not every token may be."""
        return self.rows.holds_any(batch) or self.thinking.holds_any(batch)

    def mask(self, batch: ScheduledBatch) -> StepMask:
        """Build the mask for the batch's confined rows, when all their tokens are known. Call
        `leave` for the rows that end."""
        chosen = self.rows.mask(batch) if self.rows.holds_any(batch) else self.rows.no_mask()
        confined, lost = self.thinking.confine(batch, chosen.mask, chosen.late)
        return replace(chosen, mask=confined, ends=[*chosen.ends, *map(_lost, lost)])

    def accept(
        self, runs: Iterable[tuple[int, list[int]]], finished: Sequence[int]
    ) -> list[GuidedEnd]:
        """Follow the tokens of a step, by request; return the sequences that must end now. Call
        `leave` for these too. finished: the ones that have ended."""
        if not (len(self.rows) or len(self.thinking)):
            return []
        found = list(runs)
        lost = self.thinking.accept(found)
        ends = self.rows.accept(found)
        self.leave(finished)
        return [*ends, *map(_lost, lost)]

    def leave(self, request_ids: Sequence[int]) -> None:
        """Forget requests that have ended."""
        self.rows.leave(request_ids)
        self.thinking.leave(request_ids)

    def drop(self, request_ids: Iterable[int]) -> list[FinishedRow]:
        """Abort requests, and return final rows for the ones that the scheduler does not know."""
        numbers = set(request_ids)
        dropped = set(self._gate.drop(numbers)) | (numbers & self._entered.keys())
        dropped |= {passed.request.id for passed in self._passed} & numbers
        self._passed = deque(item for item in self._passed if item.request.id not in numbers)
        for number in numbers:
            self._entered.pop(number, None)
        self.rows.leave(numbers)
        self.thinking.leave(numbers)
        return list(map(aborted_row, sorted(dropped)))

    def wait(self) -> None:
        """Block until `take` has results; for callers without a loop and without other work."""
        self._pool.wait()

    def close(self) -> None:
        """End the processes. Nothing else may be called afterwards."""
        self._pool.close()
        self._compiler.close()

    def _take_news(self, turn: GuidedTurn) -> None:
        news = self.rows.news()
        for number in news.resumed:
            request = self._entered.pop(number, None)
            if request is None:
                turn.resumed.append(number)
            else:
                # The masks see to min_tokens, which gives way to a grammar that is complete.
                params = msgspec.structs.replace(request.params, min_tokens=0)
                turn.admitted.append(msgspec.structs.replace(request, params=params))
        for end in news.ends:
            if self._entered.pop(end.request_id, None) is None:
                turn.ends.append(end)
            else:
                turn.finished.append(_finished(end))
        self.rows.leave(end.request_id for end in news.ends)

    def _let_in(self, turn: GuidedTurn) -> None:
        for outcome in self._gate.take():
            if isinstance(outcome, Passed):
                self._passed.append(outcome)
            else:
                turn.finished.append(refused_row(outcome.request, outcome.reason))
        while self._passed and self._pool.has_room:
            passed = self._passed.popleft()
            self._entered[passed.request.id] = passed.request
            request = passed.request
            self.rows.enter(request.id, passed.grammar, request.params, request.output_token_ids)


def refused_row(request: Request, reason: str) -> FinishedRow:
    """Return the final row of a request whose grammar cannot be used."""
    asked = request.params.structured_outputs
    assert asked is not None
    error = asked.refusal(reason)
    return _finished(GuidedEnd(request.id, str(error), error.param))


def _finished(end: GuidedEnd) -> FinishedRow:
    """Return the end of a request that was never scheduled."""
    if end.error is None:
        return FinishedRow(end.request_id, FinishReason.STOP.value, GRAMMAR_COMPLETE, 0)
    reason = FinishReason.ERROR.value
    return FinishedRow(end.request_id, reason, end.error, num_cached_tokens=0, param=end.param)
