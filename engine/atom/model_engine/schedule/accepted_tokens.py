"""SingleTokens and AcceptedTokens: how a step's tokens are added to its rows.

A decode that computes d extra tokens gets 1 to 1 + d, and only its step knows how many. Until the
host receives the count, the row table holds the upper bound: blocks are allocated for it, and no
step is scheduled beyond a row's end. The known count then replaces the bound; surplus blocks stay,
since the row will need them next. Without extra tokens (SingleTokens) a row gets one token, and the
table is exact. Between the row table and the stop conditions; used by Scheduler only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from atom.config import SchedulerConfig
from atom.model_engine.batch import (
    NO_TOKEN,
    Continuations,
    ScheduledBatch,
    ScheduledBatchOutput,
    Slots,
)
from atom.model_engine.schedule.row_table import RowTable
from atom.model_engine.schedule.stop_conditions import StopConditions
from atom.model_engine.sequence import Sequence
from atom.speculation.acceptance import DraftCounts
from atom.speculation.draft_lengths import DraftLengths, FixedDraftLengths
from atom.speculation.suffix.suffix_drafter import SuffixDrafter

_NEVER = np.iinfo(np.int32).max


# A step's results for living rows: their slots; their request ids; the tokens, row after row, up to
# the end of the row; how many each row got, None for one each; whether a row ends with its last
# one; and of all rows of the batch, tokens that are computed and known. A bare tuple, since there
# is one in every step.
TakenTokens = tuple[
    Slots,
    NDArray[np.int64],
    NDArray[np.int32],
    NDArray[np.int32] | None,
    NDArray[np.bool_],
    NDArray[np.int32],
]


class SingleTokens:
    """Every row that samples gets one token."""

    def __init__(self, rows: RowTable, stops: StopConditions) -> None:
        self._rows = rows
        self._stops = stops
        self.counts = DraftCounts()

    def enter(self, slot: int) -> None:
        """Note that a slot's row is filled."""

    def end(self, sequence: Sequence) -> None:
        """Note that a sequence with a slot ends."""

    def forget_answers(self) -> None:
        """Do nothing: no answers are kept."""

    def plan_extra(self, decodes: Slots, budget_tokens: int) -> int:
        """Plan no extra tokens."""
        return 0

    def stood(self, batch: ScheduledBatch) -> NDArray[np.bool_]:
        """Return which of a batch's rows had the position it states; called before its tokens are
        taken."""
        return np.ones(len(batch.slots), dtype=np.bool_)

    def take(
        self, batch: ScheduledBatch, alive: NDArray[np.bool_], output: ScheduledBatchOutput
    ) -> TakenTokens:
        """Write a step's tokens to the rows that are still there (`alive`)."""
        slots, request_ids, tokens = batch.slots, batch.req_ids, output.token_ids
        lengths = context_lens = batch.context_lens
        taken = alive & batch.samples
        if np.count_nonzero(taken) < len(taken):
            slots, lengths, request_ids = slots[taken], lengths[taken], request_ids[taken]
            tokens = tokens[alive[batch.samples]]
        self._rows.token_ids[slots, lengths] = tokens
        ended = self._stops.ended(slots, lengths, tokens)
        return slots, request_ids, tokens, None, ended, context_lens


class AcceptedTokens:
    """A row gets a run of tokens: one, and one more for every extra one that holds."""

    def __init__(self, rows: RowTable, stops: StopConditions, lengths: DraftLengths) -> None:
        self._rows = rows
        self._stops = stops
        self._lengths = lengths
        self.counts = DraftCounts()
        self._may_extend = np.zeros_like(rows.ignore_eos)
        self._num_known = np.zeros_like(rows.num_tokens)  # tokens whose values have come
        self._suffix: SuffixDrafter | None = None
        self._scope_of: Callable[[Sequence], int] = lambda sequence: 0

    def draft_with(self, suffix: SuffixDrafter, scope_of: Callable[[Sequence], int]) -> None:
        """Let the host draft, from texts that sequences of one scope share; called before any
        enters."""
        self._suffix, self._scope_of = suffix, scope_of

    def enter(self, slot: int) -> None:
        """Note that a slot's row is filled."""
        self._num_known[slot] = self._rows.num_tokens[slot]
        # A mask covers no token after the next.
        sequence = self._rows.sequence_in(slot)
        params = sequence.params
        confined = params.structured_outputs is not None or params.thinking is not None
        self._may_extend[slot] = not confined
        self._lengths.enter(slot)
        if self._suffix is not None:
            self._suffix.enter(slot, self._scope_of(sequence))

    def end(self, sequence: Sequence) -> None:
        """Note that a sequence with a slot ends, whose answer later drafts may come from."""
        if self._suffix is not None:
            slot = sequence.slot
            known = self._rows.token_ids[slot, : self._num_known[slot]]
            self._suffix.end(slot, known, sequence.num_prompt_tokens)

    def forget_answers(self) -> None:
        """Draft from no answer that ended before now."""
        if self._suffix is not None:
            self._suffix.answers.clear()

    def plan_extra(self, decodes: Slots, budget_tokens: int) -> int:
        """Set how many extra tokens the rows' next step computes, unless it is none: within each
        row's end, and all together within the budget. Returns their sum."""
        if not len(decodes):
            return 0
        rows, extra = self._rows, self._lengths.choose(decodes, self._rows.num_computed)
        if not np.count_nonzero(extra):
            return 0
        most = np.minimum(
            rows.last_position[decodes] - rows.num_tokens[decodes],
            max(0, budget_tokens // len(decodes) - 1),
        )
        extra = np.minimum(extra, most * self._may_extend[decodes])
        if self._suffix is not None:
            extra = self._foretold(self._suffix, decodes, extra)
        rows.num_extra[decodes] = extra
        return int(extra.sum())

    def _foretold(
        self, suffix: SuffixDrafter, decodes: Slots, extra: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Foretell tokens of rows that may compute extra ones; return how many each does now. A row
        whose newest tokens are on their way has drafts if these are among the foretold ones. The
        search costs no step, so that a row without a result may search again."""
        rows, found = self._rows, np.zeros_like(extra)
        asking = np.flatnonzero(extra)
        asked = [int(asking[place]) for place in suffix.begin_step(len(asking))]
        slots, paths = [], []
        for at in asked:
            slot = int(decodes[at])
            known = int(self._num_known[slot])
            unknown = int(rows.num_tokens[slot]) - known
            path = suffix.foretell(slot, rows.token_ids[slot, :known], int(extra[at]), unknown)
            # Of the tokens on their way, one comes for certain.
            if drafts := max(0, len(path) - min(unknown, 1)):
                found[at] = min(drafts, int(extra[at]))
                slots.append(slot)
                paths.append(path)
        longest = max(map(len, paths), default=0)
        padded = [path + [NO_TOKEN] * (longest - len(path)) for path in paths]
        chosen = np.array(slots, dtype=np.intp)
        rows.continuations = Continuations(
            chosen,
            self._num_known[chosen],
            np.array(padded, dtype=np.int32).reshape(len(slots), longest),
        )
        return found

    def stood(self, batch: ScheduledBatch) -> NDArray[np.bool_]:
        """Return which of a batch's rows had the position it states, and not an earlier one because
        they got fewer tokens than possible; called before its tokens are taken."""
        stood: NDArray[np.bool_] = self._num_known[batch.slots] == batch.num_computed_tokens + 1
        stood[batch.num_decodes :] = True
        return stood

    def take(
        self, batch: ScheduledBatch, alive: NDArray[np.bool_], output: ScheduledBatchOutput
    ) -> TakenTokens:
        """Write a step's tokens to the living rows (`alive`), and replace upper bounds by known
        counts."""
        if output.counts is None:
            return self._take_single(batch, alive, output)
        rows, known = self._rows, self._num_known
        taken = alive & batch.samples
        slots = batch.slots[taken]
        tokens, counts = _of_rows(output, alive[batch.samples])
        asked = self._most(batch)[taken] - np.int32(1)
        tried = asked if output.drafts is None else output.drafts[alive[batch.samples]]
        self._lengths.observe(slots, tried, counts - 1)
        self._miss(slots, asked, tried)
        self.counts.observe(tried, counts - 1)
        row = np.repeat(np.arange(len(slots)), counts)
        first = np.cumsum(counts) - counts
        index = np.arange(len(tokens)) - first[row]  # of a token among its row's
        positions = known[slots][row] + index
        rows.token_ids[slots[row], positions] = tokens
        hits = self._stops.ended(slots[row], positions, tokens)
        ended = np.zeros(len(slots), dtype=np.bool_)
        if np.count_nonzero(hits):
            ends = np.minimum.reduceat(np.where(hits, index, _NEVER), first)
            ended = ends < _NEVER
            counts = np.where(ended, ends + 1, counts).astype(np.int32)
            tokens = tokens[index < counts[row]]
        known[slots] += counts
        unused = asked + 1 - counts
        assert (unused >= 0).all(), "a row got more tokens than it could"
        rows.num_tokens[slots] -= unused
        rows.num_computed[slots] -= unused
        # All but a row's newest token are computed.
        context_lens = np.where(batch.samples, known[batch.slots] - 1, batch.context_lens)
        return slots, batch.req_ids[taken], tokens, counts, ended, context_lens

    def _take_single(
        self, batch: ScheduledBatch, alive: NDArray[np.bool_], output: ScheduledBatchOutput
    ) -> TakenTokens:
        """Take the tokens of a step that had no extra ones, though the scheduler may have counted
        on some."""
        rows, known = self._rows, self._num_known
        slots, request_ids, tokens = batch.slots, batch.req_ids, output.token_ids
        taken = alive & batch.samples
        whole = np.count_nonzero(taken) == len(taken)
        if not whole:
            slots, request_ids = slots[taken], request_ids[taken]
            tokens = tokens[alive[batch.samples]]
        positions = known[slots]
        rows.token_ids[slots, positions] = tokens
        known[slots] = positions + 1
        ended = self._stops.ended(slots, positions, tokens)
        if batch.num_scheduled_tokens[: batch.num_decodes].max(initial=1) > 1:
            asked = self._most(batch)[taken] - np.int32(1)
            self._miss(slots, asked, np.zeros_like(asked))
            rows.num_tokens[slots] -= asked
            rows.num_computed[slots] -= asked
        # All but a row's newest token are computed.
        context_lens = positions
        if not whole:
            context_lens = np.where(batch.samples, known[batch.slots] - 1, batch.context_lens)
        return slots, request_ids, tokens, None, ended, context_lens

    def _miss(self, slots: Slots, asked: NDArray[np.int32], tried: NDArray[np.int32]) -> None:
        missed = (asked > 0) & (tried == 0)
        if np.count_nonzero(missed):
            self._lengths.miss(slots[missed])

    def _most(self, batch: ScheduledBatch) -> NDArray[np.int32]:
        """Return the most tokens that each row may get: a prompt that ends gets one token, however
        many it computes."""
        most = np.ones_like(batch.num_scheduled_tokens)
        most[: batch.num_decodes] = batch.num_scheduled_tokens[: batch.num_decodes]
        return most


def _of_rows(
    output: ScheduledBatchOutput, chosen: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the tokens of the chosen sampling rows, and how many each row has."""
    counts = output.counts
    assert counts is not None, "a step without extra tokens gives one each"
    assert (counts > 0).all(), "a row that samples gets a token"
    return output.token_ids[np.repeat(chosen, counts)], counts[chosen]


def tokens_of(
    config: SchedulerConfig,
    rows: RowTable,
    stops: StopConditions,
    lengths: DraftLengths | None = None,
) -> SingleTokens | AcceptedTokens:
    """Make the count of rows that carry drafts if the configuration has any. lengths: how many;
    None for as many as blocks are kept for."""
    if not config.num_speculative_tokens:
        return SingleTokens(rows, stops)
    return AcceptedTokens(rows, stops, lengths or FixedDraftLengths(config.num_speculative_tokens))
