"""SpeculativeStepRunner: a StepRunner whose decodes carry drafts, and get every accepted one.

Drafts are made before the layers and verified after them: each of a row's 1 + d tokens is drawn as
it would be alone, with its own noise and every control, and the row gets the drawn tokens up to the
first that differs from its draft. So the tokens equal those of single steps. Until the host knows
how many tokens a row got, the device has the row's position, and the host its upper bound. Graphs
read positions from the device, so that a step of decodes is replayed (VerifyGraphs); one with
prompts runs eagerly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from atom.config import Config
from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput, TokenMask
from atom.model_engine.runner.cuda_graphs.catch_up_decodes import CatchUpDecodes
from atom.model_engine.runner.cuda_graphs.decode_graphs import DecodeGraphs, ForwardOutput
from atom.model_engine.runner.cuda_graphs.graph_parts import (
    MOST_DRAFTED_TOKENS,
    bucket_sizes,
    token_sizes,
)
from atom.model_engine.runner.cuda_graphs.graph_pool import GraphPool
from atom.model_engine.runner.cuda_graphs.verify_graphs import VerifyGraphs
from atom.model_engine.runner.host_tokens import PendingRuns, PendingTokens
from atom.model_engine.runner.slots.input_batch import StepInputs
from atom.model_engine.runner.slots.sampling_state import SamplingNeeds
from atom.model_engine.runner.speculation.catch_up_steps import computed_eagerly
from atom.model_engine.runner.speculation.continuation_proposer import ContinuationProposer
from atom.model_engine.runner.speculation.verify_step import VerifyStep
from atom.model_engine.runner.step_runner import StepRunner
from atom.model_engine.runner.step_variant import PLAIN, StepVariant
from atom.model_engine.runner.submitted_step import EagerTokens, SubmittedStep
from atom.model_engine.runner.verify_rows import VerifyRows, verify_rows
from atom.model_ops.attention.state_runs import StepRuns, with_state_runs
from atom.model_ops.backends.interface import Ops
from atom.model_ops.drafts import DraftLayout, Drafts, DrawnRuns, keep_newest, no_drafts
from atom.model_ops.sampling.draws_ahead import DrawsAhead
from atom.models.decoder.causal_lm import CausalLM
from atom.models.decoder.hidden_states import HiddenStates
from atom.models.draft_models.draft_model import DraftModel
from atom.sizing.cache_groups import CacheGroup
from atom.speculation.draft_model_proposer import DraftModelProposer
from atom.speculation.ngram import NgramProposer
from atom.speculation.proposer import Proposer, make_drafts
from atom.utils.device import Device, upload_together
from atom.utils.forward_context import DecodeRuns


class SpeculativeStepRunner(StepRunner):
    def __init__(
        self,
        model: CausalLM,
        ops: Ops,
        config: Config,
        device: Device,
        groups: Sequence[CacheGroup],
    ) -> None:
        super().__init__(model, ops, config, device, groups)
        asked = config.speculative
        assert asked is not None, "steps without drafts are StepRunner's"
        self._most_drafts = asked.num_tokens
        self._block_size = config.cache.block_size
        state = self.slots.device
        self._foretold: ContinuationProposer | None = None
        self._proposer: Proposer = NgramProposer(ops, state, asked)
        if asked.method == "suffix":
            self._proposer = self._foretold = ContinuationProposer(state, asked.num_tokens)
        self._followed: CatchUpDecodes | None = None
        self._unknown = 0  # steps that may give several tokens, and were not collected

    def draft_with(self, draft: DraftModel) -> None:
        """Draft with a model, which is to compute the steps' tokens too, instead of looking up."""
        state = self.slots.device
        self._proposer = DraftModelProposer(draft, self._ops, state, self._block_size)
        self._followed = CatchUpDecodes(self._proposer, self._ops, state, self._block_size)
        self._wants_all_states = draft.sees_states

    def build_graphs(
        self, pool: GraphPool, *, prompts: bool = False, widest: StepVariant = PLAIN
    ) -> DecodeGraphs:
        """Build the graphs of decode steps; steps with prompts and drafts run eagerly."""
        scheduler = self._config.scheduler
        rows = scheduler.max_num_seqs
        if self.model.shares_tokens:
            sizes = bucket_sizes(rows)  # that ranks agree on
        else:
            most = min(rows * (1 + self._most_drafts), MOST_DRAFTED_TOKENS)
            sizes = token_sizes(max(rows, min(most, scheduler.max_num_batched_tokens)))
        parts = self._graph_parts(pool, sizes[-1], self._followed, widest=widest)
        drafted = VerifyGraphs(parts, self._proposer, self._most_drafts, sizes)
        return DecodeGraphs(parts, drafted)

    @torch.inference_mode()
    def submit(self, batch: ScheduledBatch) -> SubmittedStep:
        if self._foretold is not None and len(batch.continuations.slots):
            self._foretold.foretell(batch.continuations)
        return super().submit(batch)

    @torch.inference_mode()
    def sample(self, step: SubmittedStep, mask: TokenMask | None = None) -> None:
        forward = step.forward
        super().sample(step, mask)
        if self._followed is not None:
            self._catch_up(step, forward)

    def collect(self, step: SubmittedStep) -> ScheduledBatchOutput:
        output = super().collect(step)
        if not step.may_run and not isinstance(step, VerifyStep):
            return output
        self._unknown -= step.may_run
        if not isinstance(step, VerifyStep):
            return replace(output, drafts=np.zeros(len(step.sample_slots), dtype=np.int32))
        rows, logprobs = step.rows, output.logprobs
        draws = step.reporting
        if logprobs is not None and draws is not None and output.counts is not None:
            # Each draw of a row that reports was reported; of these the row got the first.
            logprobs = logprobs.where(rows.offset[draws] < output.counts[rows.row[draws]])
        drafts = rows.ahead
        if isinstance(step.pending, PendingRuns):  # of some rows nothing was found to draft
            drafts = step.pending.drafted.numpy().copy()
        return replace(output, logprobs=logprobs, drafts=drafts)

    @staticmethod
    def _numbers_per_row(config: Config) -> int:
        assert config.speculative is not None
        return 3 + config.speculative.num_tokens

    # ---- by graphs ------------------------------------------------------------------------------

    def _replay(
        self, graphs: DecodeGraphs, batch: ScheduledBatch, least: int, variant: StepVariant
    ) -> SubmittedStep | None:
        scheduled, drafted = batch.num_scheduled_tokens, graphs.verify
        may_run = bool(scheduled.max(initial=1) > 1)
        if not may_run and not (self._unknown and self._asks_where(batch)):
            return super()._replay(graphs, batch, least, variant)
        tokens = batch.total_tokens_num
        assert drafted is not None, "rows may carry drafts"
        if batch.num_decodes < len(batch.slots) or tokens > drafted.most_tokens:
            return None
        self._enter(batch)
        rows = verify_rows(batch, scheduled - 1)
        forward = drafted.forward(rows, batch.block_appends, least, variant)
        sampling, layout = forward.sampling, forward.layout
        step = self._drafted_step(rows, forward.drafts, layout)
        step.replayed, step.may_run = forward, may_run
        step.forward = ForwardOutput(forward.hidden, layout.token_slots, sampling, None)
        self._stand_behind(step, sampling.position)
        self._unknown += may_run
        return step

    def _asks_where(self, batch: ScheduledBatch) -> bool:
        """Return whether rows use options that depend on their positions, which the host does not
        know."""
        least = batch.context_lens - np.int32(self._most_drafts)
        return self._sampling.needs(batch.slots, least) is SamplingNeeds.MORE

    def _sample_rows(
        self, step: SubmittedStep, forward: ForwardOutput, mask: TokenMask | None
    ) -> PendingTokens | PendingRuns:
        if not isinstance(step, VerifyStep):
            return super()._sample_rows(step, forward, mask)
        if mask is not None:  # rows that are confined carry no drafts
            mask = TokenMask(step.rows.first[mask.rows].astype(np.int32), mask.bits)
        elif step.replayed is not None:
            assert self.graphs is not None, "a graph ran the layers"
            assert self.graphs.verify is not None, "a graph ran the layers"
            least = step.positions - np.int32(self._most_drafts)
            needs = self._sampling.needs(step.sample_slots, least)
            if needs is not SamplingNeeds.MORE:
                filtered = needs is SamplingNeeds.FILTERED
                return self.graphs.verify.sample(step.replayed, step.rows, filtered=filtered)
        return super()._sample_rows(step, forward, mask)

    # ---- drafts, and the rows that verify them -------------------------------------------------

    def _begin(self, batch: ScheduledBatch) -> tuple[ScheduledBatch, SubmittedStep]:
        decodes = batch.num_decodes
        may_run = batch.num_scheduled_tokens[:decodes].max(initial=1) > 1
        if not (may_run or self._unknown):
            return super()._begin(batch)
        scheduled = batch.num_scheduled_tokens[:decodes] - 1
        drafts = self._draft(batch, scheduled) if may_run else None
        if drafts is not None and not self._device.is_gpu:
            # The host need not wait there to know of rows that have no drafts.
            scheduled = drafts.counts.numpy().astype(np.int32)
        step: SubmittedStep
        if self._unknown or scheduled.any():
            rows = verify_rows(batch, scheduled)
            batch, step = rows.batch, self._eager_step(rows, drafts)
        else:
            batch, step = super()._begin(_single(batch))
        step.may_run = bool(may_run)
        self._unknown += step.may_run
        return batch, step

    def _draft(self, batch: ScheduledBatch, scheduled: NDArray[np.int32]) -> Drafts:
        """Return the drafts of the batch's decodes, as many as they are to carry at most."""
        rows = np.flatnonzero(scheduled)
        if self._followed is not None:
            self._inputs.append_blocks(batch)  # drafting writes to them
        sent = self._send(
            slots=batch.slots[rows].astype(np.int64),
            wanted=scheduled[rows].astype(np.int64),
            rows=rows.astype(np.int64),
        )
        most = int(scheduled.max())
        drafts = make_drafts(self._proposer, sent["slots"], sent["wanted"], most)
        if len(rows) == len(scheduled):
            return drafts
        of_all = no_drafts(len(scheduled), most, drafts.counts.device)
        of_all.counts[sent["rows"]] = drafts.counts
        of_all.token_ids[sent["rows"]] = drafts.token_ids
        return of_all

    def _eager_step(self, rows: VerifyRows, drafts: Drafts | None) -> VerifyStep:
        sent = self._send(
            slots=rows.slots.astype(np.int64),
            wanted=rows.ahead.astype(np.int64),
            first=rows.first,
            token_slots=rows.slots[rows.row].astype(np.int64),
            row=rows.row,
            offset=rows.offset,
            run_starts=rows.run_starts,
        )
        runs = DecodeRuns(sent.pop("run_starts"), 1 + rows.most_ahead)
        found = no_drafts(len(rows.slots), rows.most_ahead, sent["row"].device)
        if drafts is not None:  # of the decodes, which come first
            found.counts[: len(drafts.counts)] = drafts.counts
            found.token_ids[: len(drafts.counts)] = drafts.token_ids[:, : rows.most_ahead]
        return self._drafted_step(rows, found, DraftLayout(**sent, runs=runs))

    def _drafted_step(self, rows: VerifyRows, drafts: Drafts, layout: DraftLayout) -> VerifyStep:
        batch = rows.batch
        samples = batch.samples
        return VerifyStep(
            sample_slots=batch.slots[samples],
            request_ids=batch.req_ids[samples],
            positions=batch.context_lens[samples],
            rows=rows,
            placed=not self._unknown,
            drafts=drafts,
            layout=layout,
        )

    def _stand_behind(self, step: VerifyStep, positions: torch.Tensor) -> None:
        step.behind = DrawsAhead(
            tokens=step.drafts.token_ids,
            row=step.layout.row,
            lengths=step.layout.offset,
            positions=positions,
            host_lead=self._most_drafts,
        )

    def _placed(self, inputs: StepInputs, batch: ScheduledBatch, step: SubmittedStep) -> StepInputs:
        if not isinstance(step, VerifyStep):
            return self._with_state_runs(inputs, inputs.attention[0].query_starts, 0)
        runs, tokens = step.layout.runs, batch.num_decodes
        if runs.longest > 1:
            attention = tuple(replace(group, runs=runs) for group in inputs.attention)
            inputs = replace(inputs, attention=attention)
        if tokens:
            self._place_decodes(inputs, step, tokens)
        self._stand_behind(step, inputs.sample_positions)
        prompts = inputs.attention[0].query_starts[tokens + 1 :]
        return self._with_state_runs(
            inputs, torch.cat((runs.starts, prompts)), tokens + 1 - len(runs.starts)
        )

    def _with_state_runs(self, inputs: StepInputs, starts: torch.Tensor, ahead: int) -> StepInputs:
        """Add the step's runs through states, if layers keep any. starts: of runs and prompts, as
        in StepRuns; ahead: decodes that are drafts, and so not separate rows."""
        if not self._state_layers:
            return inputs
        step = inputs.attention[0]
        rows = step.num_decodes - ahead
        slots = inputs.slots
        if ahead:
            slots = torch.cat((slots[starts[:rows].long()], slots[step.num_decodes :]))
        longest = max(step.max_query_len, 1 + self._most_drafts)
        attention = with_state_runs(
            inputs.attention,
            StepRuns(starts, slots, rows, longest),
            self.slots.device,
            self._most_drafts,
        )
        return replace(inputs, attention=attention)

    def _place_decodes(self, inputs: StepInputs, step: VerifyStep, tokens: int) -> None:
        """Place the step's first tokens, those of decodes, at the positions of their slots."""
        layout = step.layout.of(len(step.layout.slots), tokens)
        drafted = layout.drafted(step.drafts)
        if step.placed:
            newest = inputs.input_ids[:tokens]
            newest.copy_(torch.where(layout.offset > 0, drafted, newest))
            return
        placed = self._ops.prepare_drafted(
            layout.token_slots, layout.offset, drafted, self.slots.device, self._block_size
        )
        inputs.input_ids[:tokens] = placed.input_ids
        inputs.positions[:tokens] = placed.positions
        inputs.sample_positions[:tokens] = placed.sample_positions
        for attention, slot_mapping in zip(inputs.attention, placed.slot_mapping, strict=True):
            attention.context_lens[:tokens] = placed.context_lens
            attention.slot_mapping[:tokens] = slot_mapping

    def _advance(self, batch: ScheduledBatch, inputs: StepInputs, step: SubmittedStep) -> None:
        """Move on slots of prompts, to the token before the one that they draw; decodes are moved
        by as many tokens as they get."""
        if not isinstance(step, VerifyStep):
            super()._advance(batch, inputs, step)
            return
        prompts = slice(batch.num_decodes, None)
        computed = inputs.attention[0].context_lens[prompts].long()
        self.slots.device.num_computed[inputs.slots[prompts]] = computed - 1

    # ---- acceptance ----------------------------------------------------------------------------

    def _settle(
        self, step: SubmittedStep, forward: ForwardOutput, token_ids: torch.Tensor
    ) -> PendingTokens | PendingRuns:
        if self._followed is not None:
            step.drawn = token_ids
        state = self.slots.device
        if not isinstance(step, VerifyStep):
            pending = super()._settle(step, forward, token_ids)
            if forward.variant is None:
                keep_newest(forward.slots, state)
            return pending
        layout, rows = step.layout, step.rows
        drawn = DrawnRuns(layout.slots, layout.first, token_ids)
        if step.replayed is not None:
            assert self.graphs is not None, "a graph ran the layers"
            assert self.graphs.verify is not None, "a graph ran the layers"
            pending, counts = self.graphs.verify.settle(step.replayed, rows, token_ids)
        else:
            counts = self._ops.accept_drafts(drawn, step.drafts, state)
            pending = self._answer_runs(step, token_ids, counts)
        self._sampling.record_runs(rows.slots, drawn, counts, 1 + rows.most_ahead)
        step.counts = counts
        return pending

    def _answer_runs(
        self, step: VerifyStep, token_ids: torch.Tensor, counts: torch.Tensor
    ) -> PendingRuns:
        numbers = torch.cat([token_ids, counts, step.drafts.counts])
        (host, copied), rows = self._copy_out(numbers), step.rows
        drawn, (got, drafted) = host[: len(rows.row)], host[len(rows.row) :].view(2, -1)
        return PendingRuns(drawn, got, drafted, rows.row, rows.offset, copied)

    # ---- layers that catch up --------------------------------------------------------------------

    def _keep_computed(
        self, batch: ScheduledBatch, step: SubmittedStep, inputs: StepInputs, states: HiddenStates
    ) -> None:
        if self._followed is not None:
            step.computed = EagerTokens(inputs, states, self._inputs.next_ids(batch))

    def _catch_up(self, step: SubmittedStep, forward: ForwardOutput | None) -> None:
        """Pass the step's computed tokens to the proposer, after sampling."""
        if step.computed is not None:
            self._proposer.catch_up(computed_eagerly(step, step.computed))
        elif self.graphs is not None and forward is not None:
            if not isinstance(step, VerifyStep):
                self.graphs.catch_up(forward)
            elif self.graphs.verify is not None and step.replayed is not None:
                self.graphs.verify.catch_up(step.replayed)
        step.computed = step.drawn = None

    def _send(self, **arrays: NDArray[np.integer]) -> dict[str, torch.Tensor]:
        return upload_together(arrays, self._device.torch_device)


def _single(batch: ScheduledBatch) -> ScheduledBatch:
    """Return the batch without its drafts."""
    scheduled = batch.num_scheduled_tokens.copy()
    scheduled[: batch.num_decodes] = 1
    return replace(batch, num_scheduled_tokens=scheduled)
