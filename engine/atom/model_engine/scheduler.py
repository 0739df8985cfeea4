"""Scheduler: which sequences compute how many tokens in the next step, and what came of it.

Policy only: pure Python and numpy over plain data; it knows no torch, socket or process, and takes
the time as a parameter. `schedule()` turns queues and budgets into a ScheduledBatch, `update()`
turns the sampled tokens into finished sequences and freed blocks. Called by EngineCore.

Two policies. `mixed` (default, guide seeds/003): every decode first, then chunks of prompts up to
the token budget, in one ragged batch, so that no decode waits for a prefill. `prefill_first` (guide
seeds/000): prompts alone while there are any, then decodes.

A batch may be scheduled before the outputs of earlier ones are known (deferred output): a token
that a submitted batch will sample counts as a token whose value comes with `update()`. A row that
ended meanwhile is recognised and its late tokens are dropped.

Invariants: a running sequence has a slot and blocks for all its known tokens but at most the one
it is about to write; a sequence that is alone always fits (the pool holds max_model_len tokens), so
preempting who is due last always makes progress; nobody is preempted while a
token of anybody is outstanding, since it would have to be computed again without being known.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atom.config import SchedulerConfig
from atom.model_engine.batch import NewRow, PromptScore, ScheduledBatch, ScheduledBatchOutput
from atom.model_engine.block_manager import BlockManager
from atom.model_engine.engine_protocol import FinishedRow, StatsBody
from atom.model_engine.logprob_rows import LogprobRows
from atom.model_engine.request import FinishReason, Request
from atom.model_engine.row_table import RowTable
from atom.model_engine.sequence import Sequence, SequenceStatus, SequenceType
from atom.model_engine.waiting_queue import WaitingQueue, rank_of

# Blocks kept free when admitting beside running sequences, as a share of the pool: each of them
# will soon need one more, and admitting into the last block would only cause a preemption.
_WATERMARK = 0.01
_NO_APPENDS = np.zeros((0, 3), dtype=np.int32)


@dataclass(frozen=True, slots=True)
class StepResult:
    """Row i: request `request_ids[i]` (int64) got `token_ids[i]` (int32); and who ended. logprobs,
    prompt_logprobs: for requests that asked; also of some that have ended meanwhile."""

    request_ids: NDArray[np.int64]
    token_ids: NDArray[np.int32]
    finished: list[FinishedRow]
    logprobs: LogprobRows | None = None
    prompt_logprobs: LogprobRows | None = None

    def where(self, chosen: Callable[[NDArray[np.int64]], NDArray[np.bool_]]) -> StepResult:
        """What concerns the requests that `chosen` is true of, given their ids."""
        rows = chosen(self.request_ids)
        ends = chosen(np.array([row.request_id for row in self.finished], dtype=np.int64))
        return StepResult(
            self.request_ids[rows],
            self.token_ids[rows],
            [row for row, mine in zip(self.finished, ends.tolist(), strict=True) if mine],
            self.logprobs and self.logprobs.where(chosen(self.logprobs.request_ids)),
            self.prompt_logprobs
            and self.prompt_logprobs.where(chosen(self.prompt_logprobs.request_ids)),
        )


class Scheduler:
    def __init__(
        self,
        config: SchedulerConfig,
        blocks: BlockManager,
        *,
        max_model_len: int,
        eos_token_ids: Iterable[int],
        seed: int = 0,
    ) -> None:
        self._config = config
        self.blocks = blocks
        self.rows = RowTable(config.max_num_seqs, max_model_len)
        self.waiting = WaitingQueue()
        self._sequences: dict[int, Sequence] = {}
        self._order = np.zeros(0, dtype=np.int32)  # running slots, oldest admission first
        self._last_decodes = self._longest = self._order  # of the newest batch, and in order
        self._blocked: Sequence | None = None  # first in the queue, and blocks are short for it
        self._prefilling: list[int] = []  # those with given tokens left to compute, same order
        self._eos = tuple(sorted(eos_token_ids))
        self._stop_slots: dict[int, frozenset[int]] = {}  # slots with stop tokens of their own
        self._seeds = random.Random(seed)
        self._lookahead = config.num_speculative_tokens
        self._watermark_blocks = int(_WATERMARK * blocks.pool.num_blocks)
        self._new_rows: list[NewRow] = []
        self._block_appends: list[tuple[int, int, int]] = []
        self._outstanding = 0  # batches scheduled and not updated yet
        self._prefill_started_at: float | None = None
        self._last_prefill_seconds = 0.0
        self._preemptions = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generation_tokens = 0
        self._steps = 0

    # ---- requests -----------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        sequence = Sequence(request)
        self._sequences[sequence.id] = sequence
        self.waiting.add(sequence)

    def abort(self, request_ids: Iterable[int]) -> list[FinishedRow]:
        """End these requests; unknown ids (already finished) are ignored."""
        return self.end(request_ids, FinishReason.ABORT, "aborted")

    def end(
        self, request_ids: Iterable[int], reason: FinishReason, detail: str
    ) -> list[FinishedRow]:
        """The same for a reason of the caller's, who knows more than the scheduler sees."""
        ended = []
        for request_id in request_ids:
            sequence = self._sequences.get(request_id)
            if sequence is not None:
                ended.append(self._finish(sequence, reason, detail))
        return ended

    def has_work(self) -> bool:
        return bool(self._sequences)

    @property
    def num_running(self) -> int:
        return len(self._order)

    # ---- schedule -----------------------------------------------------------------------------

    def schedule(self, now: float) -> ScheduledBatch | None:
        """The next step's batch; None when nothing can run, or not before the output of a batch
        that is outstanding. `now`: monotonic seconds."""
        no_decodes = self._order[:0]
        if self._config.policy == "prefill_first":
            chunks = self._prefill_chunks(self._config.max_num_batched_tokens, now)
            decodes = no_decodes if chunks else self._decodes()
            if decodes is None:
                return None
        else:
            decodes = self._decodes()
            if decodes is None:
                return None
            budget = self._config.max_num_batched_tokens - len(decodes)
            chunks = self._prefill_chunks(budget, now)
        if len(decodes) == 0 and not chunks:
            return None
        return self._build_batch(decodes, chunks)

    def _decodes(self) -> NDArray[np.int32] | None:
        """Rows whose next input is a token that was sampled, each with a block to write it to;
        None if that takes a preemption which has to wait for outstanding tokens."""
        rows = self.rows
        order = self._order
        # A row at its full length only waits for its last token's value.
        able = rows.num_tokens[order] < rows.max_total[order]
        if self._prefilling:
            able &= rows.num_computed[order] >= rows.num_given[order]
        slots: NDArray[np.int32] = order[able]
        last_written = rows.num_computed[slots]
        if self._lookahead:  # drafts behind the row's own token, but none behind its end
            last_written = np.minimum(last_written + self._lookahead, rows.max_total[slots] - 1)
        full = slots[last_written == rows.num_blocks[slots] * self.blocks.block_size]
        if len(full) <= self.blocks.num_free_blocks:
            if len(full):
                self._append_blocks(full)
            return slots
        return self._append_blocks_preempting(slots, full.tolist())

    def _append_blocks(self, slots: NDArray[np.int32]) -> None:
        """One more block for each; there are enough."""
        rows = self.rows
        listed = slots.tolist()
        tables = [sequence.block_table for slot in listed if (sequence := rows.sequences[slot])]
        block_ids = self.blocks.append_each(tables)
        indices = rows.num_blocks[slots].tolist()
        self._block_appends += zip(listed, indices, block_ids, strict=True)
        rows.num_blocks[slots] += 1

    def _append_blocks_preempting(
        self, slots: NDArray[np.int32], full: list[int]
    ) -> NDArray[np.int32] | None:
        """The same one by one, making room at the expense of who is due last. Returns who is left
        of `slots`; None if it would take an outstanding token."""
        rows = self.rows
        preempted = False
        for slot in full:
            sequence = rows.sequences[slot]
            while sequence is not None and self.blocks.num_free_blocks == 0:
                if self._outstanding:
                    return None
                self._preempt_one()
                preempted = True
                sequence = rows.sequences[slot]  # None once it was preempted itself
            if sequence is not None:
                self._append_blocks(np.array([slot], dtype=np.int32))
        if preempted:
            slots = slots[np.isin(slots, self._order)]
        return slots

    def _prefill_chunks(self, budget: int, now: float) -> list[tuple[int, int]]:
        """(slot, tokens) of prompts to go on with or to begin, within the token budget."""
        chunks: list[tuple[int, int]] = []
        for slot in self._prefilling:
            budget = self._add_chunk(chunks, slot, budget)
        if self._passed_delay(now):
            while budget > 0 and self.waiting and self.rows.has_free_slot:
                sequence = self.waiting.first
                if not self._admit(sequence, now):
                    break
                budget = self._add_chunk(chunks, sequence.slot, budget)
        if chunks:
            self._prefill_started_at = now
        return chunks

    def _add_chunk(self, chunks: list[tuple[int, int]], slot: int, budget: int) -> int:
        """Append as much of the row as budget and threshold allow; the budget left."""
        left = int(self.rows.num_given[slot] - self.rows.num_computed[slot])
        count = min(left, budget, self._config.long_prefill_token_threshold or left)
        if count > 0:
            chunks.append((slot, count))
        return budget - count

    def _passed_delay(self, now: float) -> bool:
        """prefill_first may wait for more prompts to batch (guide: scheduler_delay_factor)."""
        if self._prefill_started_at is not None:
            self._last_prefill_seconds = now - self._prefill_started_at
            self._prefill_started_at = None
        if self._config.delay_factor == 0 or not self.waiting or self.num_running == 0:
            return True
        earliest = min(sequence.arrive_time for sequence in self.waiting)
        return now - earliest > self._config.delay_factor * self._last_prefill_seconds

    def _admit(self, sequence: Sequence, now: float) -> bool:
        """Give the first waiting sequence blocks and a slot; False when blocks are short."""
        if self.blocks.num_free_blocks == 0 or sequence is self._blocked:
            return False
        # What the cache spares is not computed, and so has no logits to look at.
        cacheable = sequence.token_ids[: 0 if sequence.num_unscored else None]
        match = self.blocks.match_prefix(cacheable, sequence.cache_salt)
        spare = self._watermark_blocks if self.num_running else 0
        num_tokens = min(sequence.num_tokens + self._lookahead, sequence.max_total_tokens)
        if not self.blocks.can_allocate(num_tokens, match, spare_blocks=spare):
            self._blocked = sequence
            return False
        self.waiting.remove(sequence)
        sequence.block_table = self.blocks.allocate(num_tokens, match)
        sequence.chain_hash = match.last_hash
        sequence.num_published = len(match.block_ids)
        slot = self.rows.enter(sequence)
        cached = len(match.block_ids) * self.blocks.block_size
        self.rows.num_computed[slot] = cached
        if sequence.seed is None:
            sequence.seed = self._seed_of(sequence)
            sequence.scheduled_time = now
            sequence.num_cached_tokens = cached
            self._prompt_tokens += sequence.num_tokens
            self._cached_tokens += cached
        if sequence.params.stop_token_ids:
            self._stop_slots[slot] = frozenset(sequence.params.stop_token_ids)
        sequence.status = SequenceStatus.RUNNING
        sequence.type = SequenceType.PREFILL
        self._order = np.append(self._order, np.int32(slot))
        self._prefilling.append(slot)
        self._new_rows.append(
            NewRow(
                slot=slot,
                request_id=sequence.id,
                token_ids=sequence.token_ids,
                num_prompt_tokens=sequence.num_prompt_tokens,
                block_ids=list(sequence.block_table),
                params=sequence.params,
                seed=sequence.seed,
            )
        )
        return True

    def _seed_of(self, sequence: Sequence) -> int:
        given = sequence.params.seed
        return self._seeds.getrandbits(63) if given is None else given

    def _preempt_one(self) -> None:
        """Send who is due last of the running back to wait; its tokens will be computed again."""
        running = (self.rows.sequences[slot] for slot in self._order.tolist())
        last = max((sequence for sequence in running if sequence is not None), key=rank_of)
        self._release(last)
        last.status = SequenceStatus.WAITING
        self.waiting.add(last)
        self._preemptions += 1

    def _build_batch(
        self, decodes: NDArray[np.int32], chunks: list[tuple[int, int]]
    ) -> ScheduledBatch:
        rows = self.rows
        decodes = self._longest_first(decodes)
        slots, scheduled = decodes, np.ones(len(decodes), dtype=np.int32)
        if chunks:
            chunk_array = np.array(chunks, dtype=np.int32)
            slots = np.concatenate([decodes, chunk_array[:, 0]])
            scheduled = np.concatenate([scheduled, chunk_array[:, 1]])
        computed = rows.num_computed[slots]
        after = computed + scheduled
        samples = after == rows.num_tokens[slots]
        scores = self._prompt_scores(len(decodes), chunks) if chunks else ()
        rows.num_computed[slots] = after
        rows.num_tokens[slots] += samples  # a token that is known by value only at update()
        if chunks:
            self._blocked = None  # what it waits for may be shareable soon
            computed_now = rows.num_computed
            still = [slot for slot in self._prefilling if computed_now[slot] < rows.num_given[slot]]
            for slot in set(self._prefilling).difference(still):
                self._sequence_in(slot).type = SequenceType.DECODE
            self._prefilling = still
        self._outstanding += 1
        batch = ScheduledBatch(
            new_rows=tuple(self._new_rows),
            block_appends=self._take_block_appends(),
            slots=slots,
            req_ids=rows.request_ids[slots],
            num_computed_tokens=computed,
            num_scheduled_tokens=scheduled,
            samples=samples,
            num_decodes=len(decodes),
            prompt_scores=scores,
        )
        self._new_rows = []
        return batch

    def _prompt_scores(
        self, first_row: int, chunks: list[tuple[int, int]]
    ) -> tuple[PromptScore, ...]:
        """What the chunks, rows of the batch from `first_row` on, compute of the prompts whose
        tokens' log-probabilities are wanted; what was looked at before a preemption is not again.
        """
        scores = []
        for row, (slot, count) in enumerate(chunks, first_row):
            sequence = self._sequence_in(slot)
            if sequence.num_unscored:
                first = sequence.num_scored
                computed = int(self.rows.num_computed[slot]) + count
                wanted = min(computed - first, sequence.num_unscored)
                if wanted > 0:
                    scores.append(PromptScore(row, first, wanted))
                    sequence.num_scored += wanted
        return tuple(scores)

    def _longest_first(self, decodes: NDArray[np.int32]) -> NDArray[np.int32]:
        """A device that computes rows in this order ends with short ones, and none of its units
        waits long for the last. Rows that go on together keep their order: each grows by one."""
        if not np.array_equal(decodes, self._last_decodes):
            self._last_decodes = decodes
            order = np.argsort(-self.rows.num_computed[decodes], kind="stable")
            self._longest = decodes[order]
        return self._longest

    def _take_block_appends(self) -> NDArray[np.int32]:
        if not self._block_appends:
            return _NO_APPENDS
        appends = np.array(self._block_appends, dtype=np.int32)
        self._block_appends = []
        return appends

    # ---- update -------------------------------------------------------------------------------

    def update(self, batch: ScheduledBatch, output: ScheduledBatchOutput) -> StepResult:
        """Take in the tokens of a batch: append, publish full blocks, finish what ended."""
        rows = self.rows
        self._outstanding -= 1
        self._steps += 1
        alive = rows.request_ids[batch.slots] == batch.req_ids  # not ended while this ran
        context_lens = batch.context_lens
        if self.blocks.enable_prefix_caching:
            self._publish_full_blocks(batch, alive, context_lens)
        slots, lengths, request_ids = batch.slots, context_lens, batch.req_ids
        tokens = output.token_ids
        taken = alive & batch.samples
        if np.count_nonzero(taken) < len(taken):
            slots, lengths, request_ids = slots[taken], lengths[taken], request_ids[taken]
            tokens = tokens[alive[batch.samples]]
        rows.token_ids[slots, lengths] = tokens
        self._generation_tokens += len(tokens)
        ended = lengths + 1 >= rows.max_total[slots]
        for eos in self._eos:  # one or a few: cheaper than a set operation of numpy
            hit = tokens == eos
            if np.count_nonzero(hit):
                ended |= hit & ~rows.ignore_eos[slots]
        if self._stop_slots:
            ended |= self._hit_stop_tokens(slots, tokens)
        finished = []
        if np.count_nonzero(ended):
            ends = zip(slots[ended].tolist(), tokens[ended].tolist(), strict=True)
            finished = [self._finish_row(slot, token) for slot, token in ends]
        return StepResult(request_ids, tokens, finished, output.logprobs, output.prompt_logprobs)

    def _publish_full_blocks(
        self, batch: ScheduledBatch, alive: NDArray[np.bool_], context_lens: NDArray[np.int32]
    ) -> None:
        size = self.blocks.block_size
        full_after = context_lens // size
        grew = alive & (full_after > batch.num_computed_tokens // size)
        if not np.count_nonzero(grew):
            return
        for slot, full in zip(batch.slots[grew].tolist(), full_after[grew].tolist(), strict=True):
            sequence = self._sequence_in(slot)
            first = sequence.num_published
            sequence.chain_hash = self.blocks.publish(
                sequence.block_table,
                self.rows.token_ids[slot, first * size : full * size],
                first,
                sequence.chain_hash,
            )
            sequence.num_published = full

    def _hit_stop_tokens(
        self, slots: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> NDArray[np.bool_]:
        none: frozenset[int] = frozenset()
        return np.fromiter(
            (
                token in self._stop_slots.get(slot, none)
                for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True)
            ),
            dtype=np.bool_,
            count=len(slots),
        )

    def _finish_row(self, slot: int, token: int) -> FinishedRow:
        """Why the row ended: end token, then its own stop tokens, then length (guide's order)."""
        sequence = self._sequence_in(slot)
        if token in self._eos and not sequence.params.ignore_eos:
            return self._finish(sequence, FinishReason.STOP, "eos")
        if token in sequence.params.stop_token_ids:
            return self._finish(sequence, FinishReason.STOP, f"stop_{token}")
        return self._finish(sequence, FinishReason.LENGTH, "max_tokens")

    def _finish(self, sequence: Sequence, reason: FinishReason, detail: str) -> FinishedRow:
        if sequence.status is SequenceStatus.RUNNING:
            self._release(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        del self._sequences[sequence.id]
        scheduled = sequence.scheduled_time
        return FinishedRow(
            request_id=sequence.id,
            reason=reason.value,
            detail=detail,
            num_cached_tokens=sequence.num_cached_tokens,
            queue_seconds=None if scheduled is None else scheduled - sequence.arrive_time,
        )

    def _sequence_in(self, slot: int) -> Sequence:
        sequence = self.rows.sequences[slot]
        assert sequence is not None, "the slot is free"
        return sequence

    def _release(self, sequence: Sequence) -> None:
        slot = sequence.slot
        self.blocks.free(sequence.block_table)
        self._blocked = None
        self.rows.leave(sequence)
        sequence.type = SequenceType.DUMMY
        if self._block_appends:  # scheduled but not sent: the slot's next owner has other blocks
            self._block_appends = [entry for entry in self._block_appends if entry[0] != slot]
        self._stop_slots.pop(slot, None)
        if slot in self._prefilling:
            self._prefilling.remove(slot)
        self._order = self._order[self._order != slot]

    # ---- reports ------------------------------------------------------------------------------

    def stats(self) -> StatsBody:
        return StatsBody(
            requests_running=self.num_running,
            requests_waiting=len(self.waiting),
            requests_partial_prefill=len(self._prefilling),
            kv_blocks_used=self.blocks.pool.num_held,
            kv_blocks_indexed=self.blocks.pool.num_indexed,
            kv_blocks_total=self.blocks.pool.num_blocks,
            preemptions_total=self._preemptions,
            prompt_tokens_total=self._prompt_tokens,
            cached_tokens_total=self._cached_tokens,
            generation_tokens_total=self._generation_tokens,
            steps_total=self._steps,
        )
