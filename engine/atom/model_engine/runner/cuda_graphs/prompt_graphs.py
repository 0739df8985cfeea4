"""PromptGraphs: the layers of steps with short prompts and decodes as captured graphs.

Launching such a step op by op is bound by the host (PromptBucket). One copy sends its inputs to the
buffers that its graph reads (StepStage); block tables, newest tokens and sampling parameters are
the slots', which the replay advances. The step is sampled eagerly, so that its rows may use any
sampling option. Captured after the warm-up, which runs such steps eagerly. Larger steps, and those
that report the log-probabilities of prompts, always run eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch

from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.runner.cuda_graphs.graph_parts import GraphParts
from atom.model_engine.runner.cuda_graphs.graph_pool import Graph
from atom.model_engine.runner.cuda_graphs.prompt_buckets import PromptBucket
from atom.model_engine.runner.cuda_graphs.step_stage import StagedInputs, StepStage
from atom.model_engine.runner.step_arrays import StepArrays
from atom.model_engine.runner.step_variant import PLAIN, StepVariant
from atom.model_ops.attention.step_plan import StepTensors, plan_captured_prompts
from atom.model_ops.backends.interface import SamplingTensors
from atom.models.decoder.hidden_states import HiddenStates
from atom.utils.forward_context import set_forward_context


@dataclass(frozen=True, slots=True)
class PromptForward:
    """Hold the results of the layers for the R rows that sample: hidden [R, H], slots [R] int64 and
    sampling; all are valid until the next replay."""

    hidden: torch.Tensor
    slots: torch.Tensor
    sampling: SamplingTensors


@dataclass(frozen=True, slots=True)
class _Captured:
    """A captured bucket, with its outputs. hidden, sampling: of as many rows as the bucket has."""

    stage: StepStage
    graph: Graph
    hidden: torch.Tensor
    sampling: SamplingTensors


class PromptGraphs:
    """Holds the captured graphs of steps with prompts. buckets: in the order in which a batch tries
    them."""

    def __init__(self, parts: GraphParts, buckets: Sequence[PromptBucket]) -> None:
        self._parts, self._buckets = parts, buckets
        self._model, self._state = parts.model, parts.state
        self._captured: dict[tuple[PromptBucket, StepVariant], _Captured] = {}

    # ---- start-up -----------------------------------------------------------------------------

    def captures(self) -> list[Callable[[], object]]:
        """Return everything that is captured, largest first."""
        return [partial(self._capture, *key) for key in self._keys()]

    def capture(self, progress: Callable[[float], None]) -> None:
        """Capture every bucket; real slots and their cache stay as they are."""
        keys = self._keys()
        for done, key in enumerate(keys):
            progress(done / len(keys))
            self._captured[key] = self._capture(*key)

    def compile_ahead(self) -> None:
        """Run the steps to capture once, without decodes and with the most decodes, to compile
        their kernels."""
        most = max((bucket.decodes for bucket in self._buckets), default=0)
        for bucket, variant in self._keys():
            if bucket.decodes in (0, most):
                self._forward(bucket, self._stage(bucket).inputs, variant)

    # ---- steps --------------------------------------------------------------------------------

    def bucket_of(self, batch: ScheduledBatch) -> PromptBucket | None:
        """Return the smallest bucket that the batch fits; None if there is none for it."""
        if batch.prompt_scores:
            return None
        return next((bucket for bucket in self._captured_buckets() if bucket.holds(batch)), None)

    def forward(
        self,
        bucket: PromptBucket,
        step: StepArrays,
        decodes: int,
        variant: StepVariant = PLAIN,
    ) -> PromptForward:
        """Run the layers of a step whose first `decodes` rows are decodes, and move its slots past
        the computed tokens; variant: the step's."""
        captured, rows = self._captured[bucket, variant], len(step.sample_slots)
        captured.stage.send(step, decodes)
        captured.graph.replay()
        return PromptForward(
            captured.hidden[:rows],
            captured.stage.inputs.sample_slots[:rows],
            captured.sampling.first(rows),
        )

    # ---- capture ------------------------------------------------------------------------------

    def _keys(self) -> list[tuple[PromptBucket, StepVariant]]:
        """Return the (bucket, variant) pairs to capture, largest first."""
        return list(product(reversed(self._buckets), self._parts.variants))

    def _captured_buckets(self) -> Sequence[PromptBucket]:
        return self._buckets if self._captured else ()

    def _stage(self, bucket: PromptBucket) -> StepStage:
        state = self._state
        return StepStage(bucket, state.num_groups, state.padding_slot, state.last_token.device)

    def _capture(self, bucket: PromptBucket, variant: StepVariant) -> _Captured:
        stage, pool = self._stage(bucket), self._parts.pool
        forward = partial(self._forward, bucket, stage.inputs, variant)
        with pool.aside():
            forward()
        graph, (hidden, sampling) = pool.capture(forward)
        return _Captured(stage, graph, hidden, sampling)

    def _forward(
        self, bucket: PromptBucket, inputs: StagedInputs, variant: StepVariant
    ) -> tuple[torch.Tensor, SamplingTensors]:
        state, decodes = self._state, bucket.decodes
        # Of decodes only the device knows the newest token.
        inputs.input_ids[:decodes] = state.last_token[inputs.slots[:decodes]]
        tables = state.block_tables[inputs.slots].view(-1, state.num_groups, state.max_blocks)
        tensors = StepTensors(
            inputs.starts,
            inputs.contexts,
            inputs.slot_mapping,
            tuple(tables.unbind(1)),
            inputs.slots,
        )
        attention = plan_captured_prompts(tensors, decodes, self._parts.sizes.max_model_len)
        context = self._parts.forward_context(
            variant, attention, partial(_slots_of_tokens, inputs), inputs.logits_indices
        )
        with set_forward_context(context):
            states: HiddenStates = self._model.model(inputs.input_ids, inputs.positions)
        state.num_computed[inputs.slots] = inputs.contexts.long()
        slots = inputs.sample_slots
        sampling = SamplingTensors(
            state.sampling.temperature[slots], state.sampling.seed[slots], inputs.sample_positions
        )
        return states.last, sampling


def _slots_of_tokens(inputs: StagedInputs) -> torch.Tensor:
    """Find the slots [T] of the tokens' rows; arbitrary ones for tokens after the last row."""
    tokens = torch.arange(len(inputs.input_ids), dtype=torch.int32, device=inputs.slots.device)
    rows = torch.bucketize(tokens, inputs.starts[1:], right=True)
    return inputs.slots[rows.clamp_(max=len(inputs.slots) - 1)]
