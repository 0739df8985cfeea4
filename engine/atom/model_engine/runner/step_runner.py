"""StepRunner: execute scheduled batches on a loaded model, forward first and then sampling.

The two halves are separate so that sampling may be issued later than its forward, and so that rows
with many sampling controls keep the forward's graph. A plain decode step is two graph replays and
nothing else. Owned by ModelRunner; knows rows and slots, no requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from atom.config import Config
from atom.model_engine.batch import (
    NewRow,
    ScheduledBatch,
    ScheduledBatchOutput,
    StateCopy,
    TokenMask,
)
from atom.model_engine.runner.cuda_graphs.catch_up_decodes import CatchUpDecodes
from atom.model_engine.runner.cuda_graphs.decode_graphs import DecodeGraphs, ForwardOutput
from atom.model_engine.runner.cuda_graphs.graph_parts import GraphParts, GraphSizes, bucket_sizes
from atom.model_engine.runner.cuda_graphs.graph_pool import GraphPool
from atom.model_engine.runner.cuda_graphs.host_ring import HostRing
from atom.model_engine.runner.cuda_graphs.prompt_buckets import (
    PromptBucket,
    host_bound_tokens,
    prompt_buckets,
)
from atom.model_engine.runner.cuda_graphs.prompt_graphs import PromptGraphs
from atom.model_engine.runner.host_tokens import (
    HostTokens,
    PendingLogprobs,
    PendingRuns,
    PendingTokens,
)
from atom.model_engine.runner.image_inputs import ImageInputs
from atom.model_engine.runner.lora_adapters import LoraAdapters
from atom.model_engine.runner.slots.entering_rows import enter_rows
from atom.model_engine.runner.slots.input_batch import InputBatch, StepInputs
from atom.model_engine.runner.slots.own_blocks import OwnBlocks
from atom.model_engine.runner.slots.sampling_state import SamplingNeeds, SamplingState
from atom.model_engine.runner.slots.slot_columns import SlotState, TableSize
from atom.model_engine.runner.step_variant import PLAIN, StepVariant, forward_context
from atom.model_engine.runner.submitted_step import SubmittedStep
from atom.model_ops.attention import StateLayer
from atom.model_ops.backends.interface import Ops, SamplingTensors
from atom.model_ops.sampling.logprobs import joined, token_logprobs
from atom.model_ops.sampling.sampler import Sampler, ShapedRows
from atom.model_ops.slots import ANY_TOKENS
from atom.models.decoder.causal_lm import CausalLM
from atom.models.decoder.hidden_states import HiddenStates
from atom.sampling_params import MAX_LOGPROBS
from atom.sizing.cache_groups import CacheGroup
from atom.utils.device import Device, upload
from atom.utils.forward_context import set_forward_context

_SCORED_AT_ONCE = 128  # positions of prompts: their logits are not kept


class StepRunner:
    """Runs steps on one device. graphs: set once captured; without them every step runs eagerly.
    adapters: set where any are served. groups: of layers, each with a block table per slot."""

    _wants_all_states = False  # of every token of a step, not only of those that are looked at

    def __init__(
        self,
        model: CausalLM,
        ops: Ops,
        config: Config,
        device: Device,
        groups: Sequence[CacheGroup],
    ) -> None:
        num_slots = config.scheduler.max_num_seqs
        self._config = config
        self.model = model
        self._ops = ops
        self._device = device
        self._sampler = Sampler(ops)
        vocab_size, length = config.model.vocab_size, config.model.max_model_len
        block_size = config.cache.block_size
        blocks = -(-length // block_size)
        tables = TableSize(len(groups), blocks, kept_tokens=length if config.speculative else 0)
        self._own_blocks = OwnBlocks.of(groups, blocks)
        self.slots = SlotState(
            num_slots,
            vocab_size,
            tables,
            device.torch_device,
            StepVariant.served_by(config),
        )
        self._sampling = SamplingState(
            self.slots, vocab_size, config.model.eos_token_ids, device.torch_device
        )
        self._host_tokens = HostTokens(num_slots * self._numbers_per_row(config), device)
        self._inputs = InputBatch(self.slots, length, block_size, device.torch_device)
        self._inputs.sees_whole = model.spec.encoder is not None
        self.images: ImageInputs | None = None
        if model.vision is not None:
            self.images = self._inputs.images = ImageInputs(model.vision, device, length)
        self.graphs: DecodeGraphs | None = None
        self.adapters: LoraAdapters | None = None
        self._state_layers = [each for each in model.modules() if isinstance(each, StateLayer)]
        self._shares_tokens = config.parallel.shares_experts
        self._dp_padding: tuple[int | None] | None = None
        self._failed: tuple[tuple[int, str], ...] = ()  # of the batch that is being submitted

    @staticmethod
    def _numbers_per_row(config: Config) -> int:
        """Count the numbers per row that a step returns to the host."""
        return 1

    @torch.inference_mode()
    def submit(self, batch: ScheduledBatch) -> SubmittedStep:
        """Start computing the batch; on a GPU this returns before the device is done.

        Of a batch that `samples_later` only the layers are run: `sample` follows, before the next
        batch is submitted."""
        saves, samples_later = batch.state_saves, batch.samples_later
        batch = self._own_blocks.renumbered(batch)
        self._inputs.apply(batch)
        if batch.state_loads:
            self._copy_states(StateLayer.load, batch.state_loads)
        for load in batch.lora_loads:
            assert self.adapters is not None, "rows have adapters where these are served"
            self.adapters.load(load.number, load.slot)
        encoded = None if self.images is None else self.images.encode(batch.images)
        graphs, least, step = self.graphs, self._least_bucket(batch), None
        if graphs is not None and least is not None and not self._has_images(batch):
            variant = self._inputs.variant(batch)
            if graphs.takes(variant):
                step = self._replay(graphs, batch, least, variant)
        if step is None:
            batch, step = self._begin(batch)
            self._forward(batch, step)
        if saves:
            self._copy_states(StateLayer.save, saves)
        if not samples_later:
            self.sample(step)
        step.failed, self._failed = self._failed, ()
        step.encoded = encoded
        return step

    def _has_images(self, batch: ScheduledBatch) -> bool:
        """Return whether images' tokens, or their positions, keep a batch out of graphs."""
        return self.images is not None and self.images.runs_eagerly(batch)

    def _copy_states(
        self,
        copy: Callable[[StateLayer, torch.Tensor, torch.Tensor], None],
        copies: Sequence[StateCopy],
    ) -> None:
        """Copy states between slots and checkpoints, in every layer that keeps any."""
        places = np.array([(each.slot, each.checkpoint) for each in copies], dtype=np.int64)
        slots, checkpoints = upload(places.T.copy(), self._device.torch_device)
        for layer in self._state_layers:
            copy(layer, slots, checkpoints)
        state_tokens = self.slots.device.state_tokens
        if copy is StateLayer.load and state_tokens is not None:
            state_tokens[slots] = ANY_TOKENS

    def build_graphs(
        self, pool: GraphPool, *, prompts: bool = False, widest: StepVariant = PLAIN
    ) -> DecodeGraphs:
        """Build the graphs of decode steps, to be captured, and with `prompts` of steps that have
        any; all of them for each variant of a step up to `widest`."""
        parts = self._graph_parts(pool, 0, widest=widest)
        if not prompts or self._shares_tokens:  # ranks that share experts agree on decodes alone
            return DecodeGraphs(parts)
        return DecodeGraphs(parts, prompts=PromptGraphs(parts, self._prompt_buckets()))

    def _prompt_buckets(self) -> tuple[PromptBucket, ...]:
        config = self._config
        ranks = config.parallel.tensor_parallel_size
        return prompt_buckets(
            config.scheduler.max_num_seqs,
            config.scheduler.max_num_batched_tokens,
            host_bound_tokens(config.model.facts, ranks),
        )

    def set_dp_padding(self, capacity: int | None) -> None:
        """Let the next step, or `run_dummy_batch`, exchange `capacity` tokens with each of the
        ranks that share experts; None for as many as needed."""
        self._dp_padding = (capacity,)

    @torch.inference_mode()
    def run_dummy_batch(self) -> None:
        """Compute this rank's experts for other ranks' tokens, in a step without tokens here."""
        assert self._dp_padding is not None
        (capacity,), self._dp_padding = self._dp_padding, None
        if self.graphs is not None and capacity is not None:
            self.graphs.run_dummy_batch(capacity)
            return
        self.model.set_dp_padding(capacity)
        self.model.run_dummy_batch()

    def _least_bucket(self, batch: ScheduledBatch) -> int | None:
        """Return the smallest bucket that the ranks have agreed on, and set it in the layers; None
        for a step without graphs."""
        if not self._shares_tokens:
            return 0
        # At start all ranks run the same steps.
        (capacity,) = self._dp_padding or (batch.total_tokens_num,)
        self._dp_padding = None
        self.model.set_dp_padding(capacity)
        return capacity

    @torch.inference_mode()
    def sample(self, step: SubmittedStep, mask: TokenMask | None = None) -> None:
        """Sample the rows of a submitted step and start to copy their tokens out. `mask`: the
        allowed tokens of some of them."""
        forward, step.forward = step.forward, None
        if forward is None:
            step.pending = PendingTokens(torch.zeros(0, dtype=torch.int32), None)
        else:
            step.pending = self._sample_rows(step, forward, mask)

    def collect(self, step: SubmittedStep) -> ScheduledBatchOutput:
        """Wait for a sampled batch; its tokens in row order."""
        pending = step.pending
        assert pending is not None, "a step is sampled before it is collected"
        token_ids, counts = pending.wait()
        return ScheduledBatchOutput(
            token_ids=token_ids,
            counts=counts,
            logprobs=step.logprobs.wait() if step.logprobs else None,
            prompt_logprobs=step.prompt_logprobs.wait() if step.prompt_logprobs else None,
            failed=step.failed,
            bad_images=() if step.encoded is None else step.encoded.bad(),
            encode_seconds=0.0 if step.encoded is None else step.encoded.took(),
        )

    def _begin(self, batch: ScheduledBatch) -> tuple[ScheduledBatch, SubmittedStep]:
        """Return the step of a batch whose changes were applied, and the rows that are computed for
        it."""
        return batch, self._step_of(batch)

    def _step_of(self, batch: ScheduledBatch) -> SubmittedStep:
        samples = batch.samples
        return SubmittedStep(
            batch.slots[samples], batch.req_ids[samples], batch.context_lens[samples]
        )

    def _replay(
        self, graphs: DecodeGraphs, batch: ScheduledBatch, least: int, variant: StepVariant
    ) -> SubmittedStep | None:
        """Run the layers by a graph; None if no graph fits the step."""
        if batch.num_decodes < len(batch.slots):
            prompts = graphs.prompts
            return None if prompts is None else self._replay_prompts(prompts, batch, variant)
        self._enter(batch)
        step = self._step_of(batch)
        step.forward = graphs.forward(batch, least, variant)
        return step

    def _replay_prompts(
        self, graphs: PromptGraphs, batch: ScheduledBatch, variant: StepVariant
    ) -> SubmittedStep | None:
        bucket = graphs.bucket_of(batch)
        if bucket is None:
            return None
        self._inputs.append_blocks(batch)
        self._enter(batch)
        step = self._step_of(batch)
        arrays = self._inputs.arrays(batch)
        forward = graphs.forward(bucket, arrays, batch.num_decodes, variant)
        if batch.samples.any():
            step.forward = ForwardOutput(forward.hidden, forward.slots, forward.sampling, None)
        return step

    def _graph_parts(
        self,
        pool: GraphPool,
        several_tokens: int,
        catch_up: CatchUpDecodes | None = None,
        *,
        widest: StepVariant,
    ) -> GraphParts:
        state, config = self.slots.device, self._config
        slots = state.padding_slot
        sizes = GraphSizes(
            block_size=config.cache.block_size,
            max_model_len=config.model.max_model_len,
            rows=bucket_sizes(slots),
            query_starts=torch.arange(
                max(slots, several_tokens) + 1, dtype=torch.int32, device=state.last_token.device
            ),
            state_drafts=config.scheduler.num_speculative_tokens if self._state_layers else 0,
        )
        return GraphParts(
            model=self.model,
            ops=self._ops,
            state=state,
            sizes=sizes,
            host_ring=HostRing(state, several_tokens),
            pool=pool,
            catch_up=catch_up,
            variants=widest.narrower(),
        )

    def _enter(self, batch: ScheduledBatch) -> None:
        if batch.new_rows:
            self._failed += enter_rows(batch.new_rows, self._enter_rows)

    def _enter_rows(self, rows: tuple[NewRow, ...]) -> None:
        self._inputs.enter(rows)
        self._sampling.enter(rows)

    def _forward(self, batch: ScheduledBatch, step: SubmittedStep) -> None:
        self._inputs.append_blocks(batch)
        inputs = self._placed(self._inputs.prepare(batch), batch, step)
        # Log-probabilities of a prompt look at all of its tokens, and so do some proposers.
        all_wanted = self._wants_all_states or bool(batch.prompt_scores)
        logits_indices = None if all_wanted else inputs.logits_indices
        images = None if self.images is None else self.images.tokens(batch)
        context = forward_context(inputs.attention, logits_indices, inputs.of_tokens, images)
        with set_forward_context(context):
            states: HiddenStates = self.model.model(inputs.input_ids, inputs.positions)
        hidden = states.last
        # Behind the layers: the device is busy while the host does this.
        self._enter(batch)
        self._advance(batch, inputs, step)
        if batch.prompt_scores:
            step.prompt_logprobs = self._score_prompts(batch, hidden)
        if all_wanted and inputs.logits_indices is not None:
            hidden = hidden[inputs.logits_indices]
        self._keep_computed(batch, step, inputs, states)
        if not batch.samples.any():
            return
        slots, state = inputs.sample_slots, self.slots.device
        step.forward = ForwardOutput(
            hidden=hidden,
            slots=slots,
            sampling=SamplingTensors(
                state.sampling.temperature[slots],
                state.sampling.seed[slots],
                inputs.sample_positions,
            ),
            variant=None,
        )

    def _keep_computed(
        self, batch: ScheduledBatch, step: SubmittedStep, inputs: StepInputs, states: HiddenStates
    ) -> None:
        """Store the inputs that a proposer catches up by, if there is one."""

    def _placed(self, inputs: StepInputs, batch: ScheduledBatch, step: SubmittedStep) -> StepInputs:
        """Return the inputs with tokens at their rows' positions, if the host does not know
        these."""
        return inputs

    def _advance(self, batch: ScheduledBatch, inputs: StepInputs, step: SubmittedStep) -> None:
        """Move the slots past the step's tokens."""
        self._inputs.advance(inputs)

    def _sample_rows(
        self, step: SubmittedStep, forward: ForwardOutput, mask: TokenMask | None
    ) -> PendingTokens | PendingRuns:
        if self.graphs is not None and forward.variant is not None and mask is None:
            needs = self._sampling.needs(step.sample_slots, step.positions)
            if needs is not SamplingNeeds.MORE:
                return self.graphs.sample(forward, filtered=needs is SamplingNeeds.FILTERED)
        slots = step.sample_slots
        temperature = self._sampling.temperature(slots)
        sampling = replace(
            forward.sampling,
            all_greedy=not temperature.any(),
            any_greedy=not temperature.all(),
        )
        shaped = self._sampling.shaped_rows(slots, step.positions, step.behind)
        if shaped or mask is not None or self._sampling.reports(slots):
            token_ids = self._draw_from_logits(step, forward.hidden, sampling, shaped, mask)
        else:
            token_ids = self.model.lm_head.draw(forward.hidden, sampling)
        return self._settle(step, forward, token_ids)

    def _draw_from_logits(
        self,
        step: SubmittedStep,
        hidden: torch.Tensor,
        sampling: SamplingTensors,
        shaped: list[ShapedRows],
        mask: TokenMask | None,
    ) -> torch.Tensor:
        """Draw the tokens [R] int64 of rows whose logits are changed, masked or reported."""
        asking, num_top = self._sampling.logprob_rows(step.sample_slots)
        logits = self.model.compute_logits(hidden)
        if len(asking):
            on_device = upload(asking, self._device.torch_device)
            raw_logits = logits.index_select(0, on_device)  # sampling may overwrite them
        if mask is not None:
            self._apply_mask(logits, mask)
        token_ids = self._sampler(logits, sampling, shaped)
        if len(asking):
            found = token_logprobs(raw_logits, token_ids[on_device], num_top)
            step.logprobs = PendingLogprobs.send(step.request_ids[asking], found)
            step.reporting = asking
        return token_ids

    def _settle(
        self, step: SubmittedStep, forward: ForwardOutput, token_ids: torch.Tensor
    ) -> PendingTokens | PendingRuns:
        """Write the drawn tokens [R] to the slots, and copy them to the host."""
        self._sampling.record(step.sample_slots, token_ids)
        state = self.slots.device
        if forward.variant is not None:
            self._ops.commit_tokens(forward.slots, token_ids, state)
        else:
            state.last_token[forward.slots] = token_ids
        return PendingTokens(*self._copy_out(token_ids))

    def _score_prompts(self, batch: ScheduledBatch, hidden: torch.Tensor) -> PendingLogprobs:
        """Log-probabilities of prompt tokens; logits only a few positions at a time."""
        indices, targets = self._inputs.prompt_targets(batch)
        found = [
            token_logprobs(self.model.compute_logits(hidden[at]), tokens, MAX_LOGPROBS)
            for at, tokens in zip(
                indices.split(_SCORED_AT_ONCE), targets.split(_SCORED_AT_ONCE), strict=True
            )
        ]
        counts = [score.count for score in batch.prompt_scores]
        rows = [score.row for score in batch.prompt_scores]
        return PendingLogprobs.send(np.repeat(batch.req_ids[rows], counts), joined(found))

    def _apply_mask(self, logits: torch.Tensor, mask: TokenMask) -> None:
        rows = upload(mask.rows.astype(np.int64), logits.device)
        self._ops.apply_token_mask(logits, rows, upload(mask.bits, logits.device))

    def _copy_out(self, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        """Copy numbers [n] to the host, after the step that computes them; return the copy, and the
        event of its arrival."""
        if not self._device.is_gpu:
            return numbers.to(torch.int32), None
        host, copied = self._host_tokens.next()
        host = host[: len(numbers)]
        host.copy_(numbers, non_blocking=True)
        copied.record()
        return host, copied
