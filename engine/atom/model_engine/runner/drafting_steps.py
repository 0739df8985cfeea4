"""DraftingStepRunner: a StepRunner whose decodes carry drafts, and get every one that holds.

Drafts are made before the layers and verified behind them: each of a row's 1 + d tokens is drawn as
it would be alone, with its own noise and every control, and the row gets what it drew up to the
first that was not the draft. So the tokens are those of a step each. Until the host knows how many
a row got, where the row stands is the device's word; the host's is the most.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from atom.config import Config
from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput, TokenMask
from atom.model_engine.runner.drafted_rows import DraftedRows, drafted_rows
from atom.model_engine.runner.drafted_step import DraftedStep
from atom.model_engine.runner.followed_steps import FollowedSteps
from atom.model_engine.runner.graph_runner import DecodeGraphs, DraftedTokens, ForwardOutput
from atom.model_engine.runner.host_tokens import PendingTokens
from atom.model_engine.runner.input_batch import StepInputs
from atom.model_engine.runner.step_runner import EagerTokens, StepRunner, SubmittedStep
from atom.model_ops.backends.interface import Ops
from atom.model_ops.drafts import Drafts, keep_newest
from atom.model_ops.sampling.drafted_draws import DraftedDraws
from atom.models.decoder import CausalLM
from atom.models.draft_model import DraftModel
from atom.models.hidden_states import HiddenStates
from atom.speculation.drafter import Drafter, NgramDrafter
from atom.speculation.model_drafter import ModelDrafter
from atom.utils.device import Device, upload_together


class DraftingStepRunner(StepRunner):
    def __init__(
        self, model: CausalLM, ops: Ops, config: Config, device: Device, num_groups: int
    ) -> None:
        super().__init__(model, ops, config, device, num_groups)
        asked = config.speculative
        assert asked is not None, "steps without drafts are StepRunner's"
        self._most_drafts = asked.num_tokens
        self._block_size = config.cache.block_size
        self._drafter: Drafter = NgramDrafter(ops, self.slots.device, asked)
        self._followed: FollowedSteps | None = None
        self._unknown = 0  # steps that may give several tokens, and were not collected

    def draft_with(self, draft: DraftModel) -> None:
        """Draft with a layer, which is to compute the steps' tokens too, instead of looking up."""
        state, size = self.slots.device, self._model.spec.hidden_size
        self._drafter = ModelDrafter(draft, self._ops, state, size, self._block_size)
        self._followed = FollowedSteps(self._drafter, self._ops, state, self._block_size)
        self._wants_all_states = True

    def sample(self, step: SubmittedStep, mask: TokenMask | None = None) -> None:
        forward = step.forward
        super().sample(step, mask)
        if self._followed is not None:
            self._followed.follow(step, forward)

    def _keep_computed(
        self, batch: ScheduledBatch, step: SubmittedStep, inputs: StepInputs, states: HiddenStates
    ) -> None:
        if self._followed is not None:
            step.computed = EagerTokens(inputs, states, self._inputs.next_ids(batch))

    def collect(self, step: SubmittedStep) -> ScheduledBatchOutput:
        output = super().collect(step)
        if not step.may_run and not isinstance(step, DraftedStep):
            return output
        self._unknown -= step.may_run
        if not isinstance(step, DraftedStep):
            return replace(output, drafts=np.zeros(len(step.sample_slots), dtype=np.int32))
        rows, logprobs = step.rows, output.logprobs
        draws = step.reporting
        if logprobs is not None and draws is not None and output.counts is not None:
            # Each draw of a row that reports was reported; of these the row got the first.
            logprobs = logprobs.where(rows.offset[draws] < output.counts[rows.row[draws]])
        return replace(output, logprobs=logprobs, drafts=rows.drafts)

    @staticmethod
    def _numbers_per_row(config: Config) -> int:
        assert config.speculative is not None
        return 2 + config.speculative.num_tokens

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
        if self._unknown or scheduled.any():
            rows = drafted_rows(batch, scheduled)
            batch, step = rows.batch, self._step_of(rows, drafts)
        else:
            batch, step = super()._begin(_single(batch))
        step.may_run = bool(may_run)
        self._unknown += step.may_run
        return batch, step

    def _is_captured(self, batch: ScheduledBatch, step: SubmittedStep) -> bool:
        assert self.graphs is not None, "there are graphs to ask about"
        small = not isinstance(step, DraftedStep) or len(batch.slots) <= self.graphs.most_drafted
        return small and super()._is_captured(batch, step)

    def _replay(
        self, graphs: DecodeGraphs, batch: ScheduledBatch, step: SubmittedStep
    ) -> ForwardOutput:
        if not isinstance(step, DraftedStep):
            return super()._replay(graphs, batch, step)
        self._inputs.append_blocks(batch)
        forward = graphs.forward_drafted(self._tokens_of(step, len(batch.slots)))
        self._stand_behind(step, forward.sampling.position)
        return forward

    def _tokens_of(self, step: DraftedStep, count: int) -> DraftedTokens:
        """The first tokens of the step, those of decodes."""
        row, offset, drafts = step.row[:count], step.offset[:count], step.drafts.token_ids
        drafted = row if not drafts.shape[1] else drafts[row, (offset - 1).clamp_min(0)]
        return DraftedTokens(step.slots[row], offset, drafted)

    def _stand_behind(self, step: DraftedStep, positions: torch.Tensor) -> None:
        step.behind = DraftedDraws(
            drafts=step.drafts.token_ids[step.row],
            lengths=step.offset,
            positions=positions,
            ahead=self._most_drafts,
        )

    def _draft(self, batch: ScheduledBatch, scheduled: NDArray[np.int32]) -> Drafts:
        """Drafts of the batch's decodes, as many as they are to carry at most."""
        rows = np.flatnonzero(scheduled)
        if self._followed is not None:
            self._inputs.append_blocks(batch)  # drafting writes to them
        sent = self._send(
            slots=batch.slots[rows].astype(np.int64),
            wanted=scheduled[rows].astype(np.int64),
            rows=rows.astype(np.int64),
        )
        drafts = self._drafter.draft(sent["slots"], sent["wanted"], int(scheduled.max()))
        if len(rows) == len(scheduled):
            return drafts
        counts = sent["rows"].new_zeros(len(scheduled))
        token_ids = counts.new_zeros((len(scheduled), drafts.token_ids.shape[1]))
        counts[sent["rows"]], token_ids[sent["rows"]] = drafts.counts, drafts.token_ids
        return Drafts(token_ids, counts)

    def _step_of(self, rows: DraftedRows, drafts: Drafts | None) -> SubmittedStep:
        batch, width = rows.batch, rows.most_drafts
        sent = self._send(
            slots=rows.slots.astype(np.int64),
            order=rows.draws(),
            row=rows.row,
            offset=rows.offset,
        )
        counts = torch.zeros_like(sent["slots"])
        token_ids = counts.new_zeros((len(counts), width))
        if drafts is not None:  # of the decodes, which come first
            counts[: len(drafts.counts)] = drafts.counts
            token_ids[: len(drafts.counts)] = drafts.token_ids[:, :width]
        samples = batch.samples
        return DraftedStep(
            sample_slots=batch.slots[samples],
            request_ids=batch.req_ids[samples],
            positions=batch.context_lens[samples],
            rows=rows,
            placed=not self._unknown,
            drafts=Drafts(token_ids, counts),
            slots=sent["slots"],
            order=sent["order"],
            row=sent["row"],
            offset=sent["offset"],
        )

    def _prepare(self, batch: ScheduledBatch, step: SubmittedStep) -> StepInputs:
        inputs = super()._prepare(batch, step)
        if not isinstance(step, DraftedStep):
            return inputs
        tokens = batch.num_decodes
        if tokens:
            self._place_decodes(inputs, step, tokens)
        self._stand_behind(step, inputs.sample_positions)
        return inputs

    def _place_decodes(self, inputs: StepInputs, step: DraftedStep, tokens: int) -> None:
        """Put the step's first tokens, those of decodes, where their slots stand."""
        ours = self._tokens_of(step, tokens)
        if step.placed:
            newest = inputs.input_ids[:tokens]
            newest.copy_(torch.where(ours.offsets > 0, ours.token_ids, newest))
            return
        placed = self._ops.prepare_drafted(
            ours.slots, ours.offsets, ours.token_ids, self.slots.device, self._block_size
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
        if not isinstance(step, DraftedStep):
            super()._advance(batch, inputs, step)
            return
        prompts = slice(batch.num_decodes, None)
        computed = inputs.attention[0].context_lens[prompts].long()
        self.slots.device.num_computed[inputs.slots[prompts]] = computed - 1

    # ---- what holds ----------------------------------------------------------------------------

    def _sample_rows(
        self, step: SubmittedStep, forward: ForwardOutput, mask: TokenMask | None
    ) -> PendingTokens:
        if mask is not None and isinstance(
            step, DraftedStep
        ):  # rows that are confined carry no drafts
            mask = TokenMask(step.rows.first[mask.rows].astype(np.int32), mask.bits)
        return super()._sample_rows(step, forward, mask)

    def _settle(
        self, step: SubmittedStep, forward: ForwardOutput, token_ids: torch.Tensor
    ) -> PendingTokens:
        if self._followed is not None:
            step.drawn = token_ids
        if not isinstance(step, DraftedStep):
            pending = super()._settle(step, forward, token_ids)
            keep_newest(forward.slots, self.slots.device)
            return pending
        state, runs = self.slots.device, token_ids[step.order]
        counts = step.counts = self._ops.accept_drafts(step.slots, runs, step.drafts, state)
        self._sampling.record_runs(step.rows.slots, runs, counts)
        self._ops.commit_tokens(step.slots, runs, state, None, counts)
        pending = self._copy_out(torch.cat([counts.unsqueeze(0), runs.T]).contiguous())
        return replace(pending, token_ids=pending.token_ids[1:], counts=pending.token_ids[0])

    def _send(self, **arrays: NDArray[np.int64]) -> dict[str, torch.Tensor]:
        return upload_together(arrays, self._device.torch_device)


def _single(batch: ScheduledBatch) -> ScheduledBatch:
    """The batch without its drafts."""
    scheduled = batch.num_scheduled_tokens.copy()
    scheduled[: batch.num_decodes] = 1
    return replace(batch, num_scheduled_tokens=scheduled)
