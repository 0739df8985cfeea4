"""Scheduler: which sequences compute how many tokens in the next step, and the results of steps.

Policy only: pure Python and numpy over plain data; it knows no torch, socket or process, and takes
the time as a parameter. `schedule()` turns queues and budgets into a ScheduledBatch, `update()`
turns the sampled tokens into finished sequences and freed blocks. Called by EngineCore.

Two policies (docs/guides/scheduling.md). `mixed` (default): every decode first, then chunks of
prompts up to the token budget, in one ragged batch, so that no decode waits (chunked prefill).
`prefill_first`: prompts alone while there are any, then decodes.

A batch may be scheduled before the outputs of earlier ones are known (deferred output): a token
that a submitted batch will sample counts as a token whose value comes with `update()`; a row that
may get several counts the most (AcceptedTokens). A row that ended meanwhile is recognised and its
late tokens are dropped.

Invariants: a running sequence has a slot and blocks for all its known tokens except perhaps the one
it is about to write (if layers see a window: for the tokens in the window, and for a chunk of a
prompt once it is scheduled); a single sequence always fits (the pool holds max_model_len tokens),
so preempting the sequence that is due last always makes progress; no sequence is preempted while
one of its tokens is outstanding, since it would have to be recomputed before it is known.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import partial

import numpy as np

from atom.config import SchedulerConfig
from atom.model_engine.batch import NO_IMAGES, ScheduledBatch, ScheduledBatchOutput, Slots
from atom.model_engine.block_manager import BlockManager
from atom.model_engine.request import FinishReason, Request
from atom.model_engine.schedule.accepted_tokens import tokens_of
from atom.model_engine.schedule.admission import Admission
from atom.model_engine.schedule.batch_builder import BatchBuilder, Chunk
from atom.model_engine.schedule.decode_rows import DecodeRows
from atom.model_engine.schedule.fair_queue import FairQueue
from atom.model_engine.schedule.images.image_steps import BAD_IMAGE, ImageSteps
from atom.model_engine.schedule.lora_slots import LoraSlots
from atom.model_engine.schedule.making_way import plan_way
from atom.model_engine.schedule.page_keeper import PageKeeper, ticket_of
from atom.model_engine.schedule.prompt_chunks import PromptChunks
from atom.model_engine.schedule.prompt_counts import PromptCounts
from atom.model_engine.schedule.prompt_pace import PromptPace
from atom.model_engine.schedule.publishing import Publishing
from atom.model_engine.schedule.row_blocks import RowBlocks
from atom.model_engine.schedule.row_table import RowTable
from atom.model_engine.schedule.state_saves import StateSaves
from atom.model_engine.schedule.step_result import StepResult, finished_row
from atom.model_engine.schedule.step_time import Beside
from atom.model_engine.schedule.stop_conditions import StopConditions
from atom.model_engine.schedule.tiers.kv_tiers import KVTiers
from atom.model_engine.sequence import Sequence, SequenceStatus
from atom.model_engine.wire.core_stats import StatsBody
from atom.model_engine.wire.engine_protocol import FinishedRow
from atom.sizing.vision.facts import VisionFacts
from atom.speculation.draft_lengths import DraftLengths

POOLED = "pooled"  # the end reason of a request whose answer is no token


class Scheduler:
    def __init__(
        self,
        config: SchedulerConfig,
        blocks: BlockManager,
        *,
        max_model_len: int,
        eos_token_ids: Iterable[int],
        seed: int = 0,
        draft_lengths: DraftLengths | None = None,
        tiers: KVTiers | None = None,
        vision: VisionFacts | None = None,
    ) -> None:
        """draft_lengths: how many tokens rows compute beside their newest; None for as many as
        blocks are kept for. tiers: of the cache below the device; vision: the encoder of a model
        that reads images."""
        self._config = config
        self.blocks = blocks
        self.rows = RowTable(config.max_num_seqs, max_model_len)
        self.waiting = FairQueue(
            self.rows, weights=config.client_weights, fair=config.fairness == "clients"
        )
        self._sequences: dict[int, Sequence] = {}
        self._order = np.zeros(0, dtype=np.intp)  # running slots, oldest admission first
        self._prefilling: list[int] = []  # those with given tokens left to compute, same order
        self._row_blocks = RowBlocks(blocks, self.rows, lookahead=config.num_speculative_tokens)
        self._batches = BatchBuilder(self.rows)
        self._saves: StateSaves | None = None
        if blocks.checkpoints is not None:
            self._saves = StateSaves(blocks.checkpoints, blocks, self.rows)
        self._publishing = Publishing(self._row_blocks, self._saves)
        cut = config.long_prefill_token_threshold
        self._chunks = PromptChunks(self.rows, self._row_blocks, self._batches, self._saves, cut)
        self._vision = vision
        self.images = ImageSteps.of(vision, self.rows, max_model_len, config)
        self._chunks.images = self.images
        self._chunks.undivided = not config.divides_prompts
        self.loras = LoraSlots(config.max_loras)
        self._admission = Admission(blocks, self._row_blocks, self.loras)
        self._stops = StopConditions(self.rows, eos_token_ids)
        self.tokens = tokens_of(config, self.rows, self._stops, draft_lengths)
        self.pace = PromptPace(config)
        self._seeds = random.Random(seed)
        self._held: set[int] = set()  # ids of sequences that take part in no batch
        self._decode_rows = DecodeRows(
            self.rows, self._row_blocks, self._batches, self._held, self._preempt_one
        )
        self.tiers = tiers
        self._parked: set[int] = set()  # ids of sequences whose prefix is being read from a tier
        self._outstanding = 0  # batches scheduled and not updated yet
        self._preemptions = self._generation_tokens = self._steps = 0
        self._prompts = PromptCounts(caching=blocks.enable_prefix_caching)
        self.keeper: PageKeeper | None = None  # of prefill legs' pages

    # ---- requests -----------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        sequence = Sequence(request, self._vision)
        with self.loras.begun(sequence.lora):
            self.waiting.add(sequence)
        self._sequences[sequence.id] = sequence
        if self.images is not None:
            self.images.arrive(sequence)

    def abort(self, request_ids: Iterable[int]) -> list[FinishedRow]:
        """Abort requests; unknown ids (already finished) are ignored."""
        return self.end(request_ids, FinishReason.ABORT, "aborted")

    def end(
        self, request_ids: Iterable[int], reason: FinishReason, detail: str
    ) -> list[FinishedRow]:
        """End requests for a reason that the caller gives; unknown ids are ignored."""
        ended = []
        for request_id in request_ids:
            sequence = self._sequences.get(request_id)
            if sequence is not None:
                ended.append(self._finish(sequence, reason, detail))
        return ended

    def knows(self, request_id: int) -> bool:
        """Return whether this request has not ended."""
        return request_id in self._sequences

    def is_waiting(self, request_id: int) -> bool:
        """Return whether this request has not ended and has no slot."""
        sequence = self._sequences.get(request_id)
        return sequence is not None and sequence.status is SequenceStatus.WAITING

    def hold(self, request_ids: Iterable[int]) -> None:
        """Keep decoding requests out of batches until `resume`; they keep slots and blocks."""
        self._held.update(request_ids)

    def set_back(self, request_ids: Iterable[int]) -> None:
        """Preempt requests until `resume`, and drop the token that their one outstanding batch
        gives them: `update` must process that batch before `resume`. The requests give back slots
        and blocks."""
        for request_id in request_ids:
            sequence = self._sequences[request_id]
            self.rows.num_tokens[sequence.slot] -= 1
            self._held.add(request_id)
            self._preempt(sequence)

    def resume(self, request_ids: Iterable[int]) -> None:
        """Let held requests take part in batches again; other ids are ignored."""
        for request_id in request_ids:
            if request_id in self._held:
                self._held.remove(request_id)
                sequence = self._sequences[request_id]
                if sequence.status is SequenceStatus.WAITING:
                    self.waiting.add(sequence)

    def take_in_pages(self, now: float) -> None:
        """Queue the requests again whose prefix has been read from another tier."""
        if self.tiers is None:
            return
        for number in self.tiers.take_in(now):
            self._admission.reopen()
            if number in self._parked:
                self._parked.remove(number)
                self.waiting.add(self._sequences[number])

    def preempt_all(self) -> None:
        """Preempt every running sequence; no batch is outstanding."""
        while self.num_running:
            self._preempt_one()

    def exit_engine(self) -> int:
        """End every request, since the engine shuts down; how many there were."""
        return len(self.abort(list(self._sequences)))

    def has_work(self) -> bool:
        """Return whether a sequence is there that is not held."""
        return len(self._sequences) > len(self._held) + len(self._parked)

    @property
    def open_requests(self) -> tuple[int, ...]:
        """Return the ids of all requests that have not ended."""
        return tuple(self._sequences)

    @property
    def num_requests(self) -> int:
        """Count all requests that have not ended."""
        return len(self._sequences)

    @property
    def num_running(self) -> int:
        return len(self._order)

    # ---- schedule -----------------------------------------------------------------------------

    def schedule(self, now: float) -> ScheduledBatch | None:
        """Return the next step's batch; None if nothing can run, or not before the output of a
        batch that is outstanding. `now`: monotonic seconds."""
        if not self._make_way(now):
            return None
        most = self._config.max_num_batched_tokens
        if self._config.policy == "prefill_first":
            chunks = self._prefill_chunks(most, most, now)
            decodes = self._order[:0] if chunks else self._decodes()
            if decodes is None:
                return None
            extra = self.tokens.plan_extra(decodes, most)
        else:
            decodes = self._decodes()
            if decodes is None:
                return None
            extra = self.tokens.plan_extra(decodes, most)
            room = most - len(decodes) - extra
            beside = Beside.of(len(decodes) > 0, self.waiting.is_shared)
            chunks = self._prefill_chunks(self.pace.prompt_budget(room, now, beside), room, now)
        if len(decodes) == 0 and not chunks:
            return self._schedule_with_room(now)
        saves = () if self._saves is None else self._saves.plan(decodes, chunks)
        images = NO_IMAGES if self.images is None else self.images.take(chunks)
        batch = self._batches.build(decodes, chunks, extended=extra > 0, saves=saves, images=images)
        self._note_built(chunks)
        self.pace.began(now, sum(count for _, count in chunks))
        return batch

    def _schedule_with_room(self, now: float) -> ScheduledBatch | None:
        """Preempt the sequence that is due last and schedule again, since no row could run. Prompts
        that share a window's blocks free fewer than they were promised when it moves on, and so may
        wait for each other."""
        if self._outstanding or len(self._decode_rows.not_held(self._order)) < 2:
            return None
        self._preempt_one()
        return self.schedule(now)

    def _make_way(self, now: float) -> bool:
        """Admit waiting clients that run fewer rows than their share at the expense of the client
        that runs most. Returns False if that has to wait for outstanding tokens."""
        budget = self._config.max_num_batched_tokens
        while self.waiting and (self._admission.is_blocked or not self.rows.has_free_slot):
            way = plan_way(self.waiting, self.rows, self._row_blocks, self.loras)
            if way is None:
                break
            if way.rows and self._outstanding:
                return False
            for sequence in way.rows:
                self._preempt(sequence)
            self._preemptions += len(way.rows)
            self._admission.reopen()
            budget -= way.sequence.num_tokens
            if not self._admit(way.sequence, now, leave_spare=False) or budget <= 0:
                break
        return True

    def _decodes(self) -> Slots | None:
        outstanding, prefilling = bool(self._outstanding), bool(self._prefilling)
        return self._decode_rows.take(self._order, outstanding=outstanding, prefilling=prefilling)

    def _prefill_chunks(self, budget: int, room: int, now: float) -> list[Chunk]:
        """List (slot, tokens) of prompts to continue or to begin, within the token budget; up to
        `room` tokens for some that cannot be divided."""
        chunks = self._chunks.begin_step(room)
        admit = partial(self._admit, now=now)
        begins = self.pace.may_begin(now, self.waiting, others_run=self.num_running > 0)
        if begins and self._prefilling and self.waiting:
            self._chunks.begin_beside(self._prefilling, self.waiting, budget // 2, admit)
        if self._prefilling:
            clients = self.waiting.clients_in(self._prefilling)
            for slot, most in self._chunks.share(self._prefilling, clients, budget):
                budget -= self._chunks.add(chunks, slot, most)
        if begins and self.waiting:
            self._chunks.begin(chunks, self.waiting, budget, admit)
        return chunks

    def _admit(self, sequence: Sequence, now: float, *, leave_spare: bool = True) -> bool:
        """Admit the first waiting sequence to blocks and a slot, or park it while its prefix is
        read; False if there is no room. leave_spare: keep blocks free for running rows."""
        match = self._admission.match(sequence, others_run=leave_spare and self.num_running > 0)
        if match is None:
            return False
        if self.tiers is not None and self.tiers.begin(sequence, match, self.pace.seconds_a_token):
            self.waiting.end(sequence)
            self._parked.add(sequence.id)
            return True
        slot = self.rows.enter(sequence)
        cached = self._row_blocks.allocate(sequence, match)
        begins = sequence.seed is None  # no preemption was before
        self.waiting.admit(sequence, sequence.num_tokens - cached if begins else 0)
        if begins:
            self._enter_first_time(sequence, cached, now)
            if self.images is not None:
                self.images.begin(sequence)
        sequence.status, sequence.tier_reads = SequenceStatus.RUNNING, 0
        self._order = np.append(self._order, slot)
        self._prefilling.append(slot)
        self._stops.enter(sequence)
        self.tokens.enter(slot)
        if (load := self.loras.enter(sequence)) is not None:
            self._batches.load_lora(load)
        self._batches.enter(sequence)
        if cached and self.blocks.checkpoints is not None:
            self._batches.load_state(slot, self.blocks.checkpoints.use(match.block_ids[0][-1]))
        return True

    def _enter_first_time(self, sequence: Sequence, cached: int, now: float) -> None:
        """Set the fields that no preemption changes, and count the prompt."""
        given = sequence.params.seed
        sequence.seed = self._seeds.getrandbits(63) if given is None else given
        sequence.scheduled_time = now
        sequence.num_cached_tokens = min(cached, sequence.num_prompt_tokens)
        self._prompts.add(sequence, cached)

    def _preempt_one(self) -> None:
        """Preempt the running sequence that is due last; its tokens will be computed again."""
        running = (self.rows.sequences[slot] for slot in self._order.tolist())
        self._preempt(
            self.waiting.last_due(sequence for sequence in running if sequence is not None)
        )
        self._preemptions += 1

    def _preempt(self, sequence: Sequence) -> None:
        if sequence.id in self._held:
            self.waiting.end(sequence)  # until it comes back by `resume`
        else:
            self.waiting.preempt(sequence)
        self._release(sequence)
        sequence.status = SequenceStatus.WAITING

    def _note_built(self, chunks: list[Chunk]) -> None:
        """Note that a batch with these chunks is on its way."""
        self._outstanding += 1
        if chunks:
            self._admission.reopen()  # the blocks that it waits for may be shareable soon
            self._prefilling = self._chunks.unfinished(self._prefilling)

    # ---- update -------------------------------------------------------------------------------

    def update(self, batch: ScheduledBatch, output: ScheduledBatchOutput) -> StepResult:
        """Process the tokens of a batch: append, publish full blocks, finish ended sequences."""
        rows = self.rows
        self._outstanding -= 1
        self._steps += 1
        self.pace.ended(has_prompts=batch.num_decodes < len(batch.slots))
        finished: list[FinishedRow] = []
        for number, why in output.failed:
            finished += self.end((number,), FinishReason.ERROR, why)
        if self.images is not None and batch.images.encodes:
            having = self.images.note_encoded(batch, output, self._sequences.values())
            finished += self.end(having, FinishReason.ERROR, BAD_IMAGE)
        alive = rows.request_ids[batch.slots] == batch.req_ids  # not ended while this ran
        saved = alive & self.tokens.stood(batch) if batch.state_saves else alive
        taken = self.tokens.take(batch, alive, output)
        slots, request_ids, tokens, counts, ended, context_lens = taken
        if self.blocks.enable_prefix_caching:
            self._publishing.publish(batch, alive, context_lens, saved)
        windows = self._row_blocks.windows
        if windows is not None and windows.free_left(batch, alive, context_lens):
            self._admission.reopen()
        if output.pooled is not None:  # these tokens only end their rows
            finished += [
                self._finish(rows.sequence_in(slot), FinishReason.STOP, POOLED)
                for slot in slots[ended].tolist()
            ]
            return StepResult(request_ids[:0], tokens[:0], finished, pooled=output.pooled)
        self._generation_tokens += len(tokens)
        if np.count_nonzero(ended):
            last_tokens = tokens if counts is None else tokens[counts.cumsum() - 1]
            ends = zip(slots[ended].tolist(), last_tokens[ended].tolist(), strict=True)
            for sequence, token in ((rows.sequence_in(slot), token) for slot, token in ends):
                finished.append(self._finish(sequence, *self._stops.reason(sequence, token)))
        return StepResult(
            request_ids, tokens, finished, counts, output.logprobs, output.prompt_logprobs
        )

    def _finish(self, sequence: Sequence, reason: FinishReason, detail: str) -> FinishedRow:
        ticket = ticket_of(self.keeper, sequence, reason)
        if sequence.status is SequenceStatus.RUNNING and reason is not FinishReason.ERROR:
            self.tokens.end(sequence)
        self._leave(sequence)
        sequence.status = SequenceStatus.FINISHED
        del self._sequences[sequence.id]
        if self.images is not None:
            self.images.end(sequence)
        self.loras.end(sequence.lora)
        return finished_row(sequence, reason, detail, ticket)

    def _leave(self, sequence: Sequence) -> None:
        """Remove a sequence that ends, whether it waits, runs or is held."""
        runs = sequence.status is SequenceStatus.RUNNING
        if runs or sequence.id not in self._held | self._parked:
            self.waiting.end(sequence)
        if runs:
            self._release(sequence)
        self._held.discard(sequence.id)
        self._parked.discard(sequence.id)

    def _release(self, sequence: Sequence) -> None:
        slot = sequence.slot
        if sequence.lora is not None:
            self.loras.leave(sequence.lora)
        self._row_blocks.free(sequence)
        self._admission.reopen()
        if sequence.images is not None and self.images is not None:
            self.images.leave(slot)
        self.rows.leave(sequence)
        self._batches.leave(slot)
        self._stops.leave(slot)
        if slot in self._prefilling:
            self._prefilling.remove(slot)
        self._order = self._order[self._order != slot]

    # ---- reports ------------------------------------------------------------------------------

    def stats(self) -> StatsBody:
        return StatsBody(
            requests_running=self.num_running,
            requests_waiting=self.num_requests - self.num_running,
            requests_partial_prefill=len(self._prefilling),
            kv_blocks_used=self.blocks.pool.num_referenced,
            kv_blocks_indexed=self.blocks.pool.num_indexed,
            kv_blocks_total=self.blocks.pool.num_blocks,
            preemptions_total=self._preemptions,
            generation_tokens_total=self._generation_tokens,
            steps_total=self._steps,
            running_loras=self.loras.running,
            waiting_loras=self.loras.waiting,
            **self._prompts.totals(),
            **self.tokens.counts.totals(),
            **({} if self.tiers is None else self.tiers.totals()),
            **({} if self.images is None else self.images.totals()),
        )
