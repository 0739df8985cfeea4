"""DecodeGraphs: a decode step as captured graphs per batch size, one forward and two samplings.

Replaying the forward appends blocks, builds the inputs from the slots and runs the layers; the host
only sends the slots to run and the blocks to append. Replaying the sampling turns the hidden states
into tokens, advances the slots and answers the host (HostRing). One sampling graph supports
temperatures alone, the other top-k, top-p and min-p too. A batch whose rows need further sampling
options, or whose sampling has to wait for a mask, replays the forward and samples eagerly. Sizes
are buckets: a batch runs in the smallest bucket that holds it, padded with rows whose results are
unused. Large buckets have two variants: attention need not split the rows of a step of similar
lengths. If adapters are served, a step in which any row uses one has graphs of its own. If a layer
drafts, following the step is a graph, too; VerifyGraphs runs steps whose rows carry drafts,
PromptGraphs steps with prompts. Captured at start, largest first, sharing one memory pool. A test
shows identical tokens with graphs off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.runner.cuda_graphs.graph_parts import FILTERS, GraphParts, filtered_draw
from atom.model_engine.runner.cuda_graphs.graph_pool import Graph, measured_bytes
from atom.model_engine.runner.cuda_graphs.prompt_graphs import PromptGraphs
from atom.model_engine.runner.cuda_graphs.verify_graphs import VerifyGraphs
from atom.model_engine.runner.host_tokens import PendingTokens
from atom.model_engine.runner.step_variant import PLAIN, StepVariant
from atom.model_ops.attention.state_runs import StepRuns
from atom.model_ops.attention.step_plan import plan_captured_step
from atom.model_ops.backends.interface import SamplingTensors
from atom.models.decoder.hidden_states import HiddenStates
from atom.utils.forward_context import set_forward_context
from atom.utils.row_groups import are_even

# From this bucket on a step of even rows has a separate graph; below, every row is split anyway.
_EVEN_FROM = 48


@dataclass(frozen=True, slots=True)
class GraphVariant:
    """Identify a captured graph. size: rows of the bucket; even: captured for rows of similar
    lengths; step: the kinds of rows it was captured for."""

    size: int
    even: bool
    step: StepVariant


@dataclass(frozen=True, slots=True)
class _Graphs:
    """Hold the graphs of a variant, and the forward's results for sampling: states of the bucket's
    rows, sampling: of these. samples: by whether they support top-k, top-p and min-p; catch_up: of
    a drafting layer."""

    forward: Graph
    states: HiddenStates
    sampling: SamplingTensors
    samples: dict[bool, Graph]
    catch_up: Graph | None = None


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """Hold the results of the layers for the R rows that sample: hidden [R, H]; slots [R] int64 and
    sampling, on the device. variant: of the graph of a plain decode step that ran the layers (its
    tensors are valid until the next replay, its slots not advanced yet), if one did."""

    hidden: torch.Tensor
    slots: torch.Tensor
    sampling: SamplingTensors
    variant: GraphVariant | None


class DecodeGraphs:
    """Holds the captured graphs of decode steps. verify: of steps whose rows carry drafts, if any
    do; prompts: of steps with prompts."""

    def __init__(
        self,
        parts: GraphParts,
        verify: VerifyGraphs | None = None,
        prompts: PromptGraphs | None = None,
    ) -> None:
        self._parts = parts
        self.verify, self.prompts = verify, prompts
        self._model, self._ops, self._state = parts.model, parts.ops, parts.state
        num_slots = self._state.padding_slot
        self._sizes = parts.sizes.rows
        self._graphs: dict[GraphVariant, _Graphs] = {}
        # By bucket, where other ranks' steps may need this one's experts.
        self._dummy: dict[int, Graph] = {}
        # Of the rows of the step that runs, as it received them.
        self._slots = torch.full_like(self._state.last_token[:num_slots], num_slots)
        self._host_ring = parts.host_ring

    def takes(self, variant: StepVariant) -> bool:
        """Return whether there are graphs of steps of the variant."""
        return variant in self._parts.variants

    def measure_bytes(self) -> int:
        """Estimate the device bytes of all graphs from the first few captures. Do not replay these
        graphs."""
        kinds: list[Sequence[Callable[[], object]]] = [
            [partial(self._capture, variant) for variant in self._variants()]
            + [*self._dummy_captures()]
        ]
        if self.verify is not None:
            kinds += self.verify.captures()
        if self.prompts is not None:
            kinds.append(self.prompts.captures())
        return measured_bytes(kinds)

    def capture(self, progress: Callable[[float], None]) -> None:
        """Capture every bucket of decodes, largest first, without changing real slots and their
        cache. Buckets of prompts are captured separately."""
        variants = self._variants()
        for done, variant in enumerate(variants):
            progress(done / len(variants))
            self._graphs[variant] = self._capture(variant)
        for size, capture in zip(reversed(self._sizes), self._dummy_captures(), strict=False):
            self._dummy[size] = capture()
        if self.verify is not None:
            self.verify.capture(progress)
        self._host_ring.restart()

    def compile_ahead(self) -> None:
        """Run the steps to capture once, for a bucket of each power of two, to compile their
        kernels."""
        for variant in self._variants():
            if variant.size & (variant.size - 1) == 0 or variant.size == self._sizes[-1]:
                self._run(variant)
        if self.prompts is not None:
            self.prompts.compile_ahead()

    def forward(
        self, batch: ScheduledBatch, least: int = 0, step: StepVariant = PLAIN
    ) -> ForwardOutput:
        """Run the layers of a batch of decodes, in a bucket no smaller than `least`; step: the
        batch's variant."""
        rows = len(batch.slots)
        size = next(size for size in self._sizes if size >= max(rows, least))
        self._host_ring.post(batch.slots, batch.block_appends)
        even = size >= _EVEN_FROM and are_even(batch.context_lens)
        variant = GraphVariant(size, even, step)
        graphs = self._graphs[variant]
        graphs.forward.replay()
        return ForwardOutput(
            graphs.states.last[:rows], self._slots[:rows], graphs.sampling.first(rows), variant
        )

    def run_dummy_batch(self, size: int) -> None:
        """Compute this rank's experts for others' tokens, in a step of this bucket."""
        self._dummy[size].replay()

    def sample(self, forward: ForwardOutput, *, filtered: bool) -> PendingTokens:
        """Sample the last forward's rows (`filtered`: by their top-k, top-p and min-p) and advance
        their slots; their tokens, on their way to the host."""
        assert forward.variant is not None, "an eager forward has no graph to sample with"
        self._graphs[forward.variant].samples[filtered].replay()
        return self._host_ring.answer(len(forward.slots))

    def catch_up(self, forward: ForwardOutput) -> None:
        """Let the layer that drafts compute the last forward's rows, which were sampled."""
        assert forward.variant is not None, "an eager forward has no graph to catch up with"
        graph = self._graphs[forward.variant].catch_up
        assert graph is not None, "a layer drafts"
        graph.replay()

    def _variants(self) -> list[GraphVariant]:
        """Return the variants, largest first, so that the pool is made once."""
        return [
            GraphVariant(size, even, step)
            for size in reversed(self._sizes)
            for even in ((False, True) if size >= _EVEN_FROM else (False,))
            for step in self._parts.variants
        ]

    def _dummy_captures(self) -> Iterator[Callable[[], Graph]]:
        if self._model.shares_tokens:
            for size in reversed(self._sizes):
                yield partial(self._capture_dummy, size)

    def _capture(self, variant: GraphVariant) -> _Graphs:
        size, pool, catch_up_decodes = variant.size, self._parts.pool, self._parts.catch_up
        with pool.aside():
            self._run(variant)
        forward, (states, sampling) = pool.capture(partial(self._forward, variant))
        samples = {
            filtered: pool.capture(partial(self._sample, size, states.last, sampling, filtered))[0]
            for filtered in FILTERS
        }
        catch_up = None
        if catch_up_decodes is not None:
            catch_up, _ = pool.capture(
                partial(catch_up_decodes.of_decodes, self._slots[:size], states)
            )
        return _Graphs(forward, states, sampling, samples, catch_up)

    def _run(self, variant: GraphVariant) -> None:
        """Run the steps of the variant's graphs without graphs."""
        size, catch_up_decodes = variant.size, self._parts.catch_up
        states, sampling = self._forward(variant)
        for filtered in FILTERS:
            self._sample(size, states.last, sampling, filtered)
        if catch_up_decodes is not None:
            catch_up_decodes.of_decodes(self._slots[:size], states)

    def _capture_dummy(self, size: int) -> Graph:
        self._model.set_dp_padding(size)
        with self._parts.pool.aside():
            self._model.run_dummy_batch()
        return self._parts.pool.capture(self._model.run_dummy_batch)[0]

    def _forward(self, variant: GraphVariant) -> tuple[HiddenStates, SamplingTensors]:
        """Run the step of a forward graph: from the slots to the hidden states."""
        size, parts = variant.size, self._parts
        self._model.set_dp_padding(size)
        self._ops.receive_step(self._host_ring.ring, self._slots, self._state)
        step = self._ops.prepare_decode(self._slots[:size], self._state, parts.sizes.block_size)
        starts = parts.sizes.query_starts[: size + 1]
        slots = self._slots[:size]
        attention = parts.with_state_runs(
            plan_captured_step(
                step, starts, parts.sizes.max_model_len, even=variant.even, slots=slots
            ),
            StepRuns(starts, slots, size, longest=1),
        )
        with set_forward_context(
            parts.forward_context(variant.step, attention, token_slots=lambda: slots)
        ):
            states: HiddenStates = self._model.model(step.input_ids, step.positions)
        return states, SamplingTensors(step.temperature, step.seed, step.sample_positions)

    def _sample(
        self, size: int, hidden: torch.Tensor, sampling: SamplingTensors, filtered: bool
    ) -> None:
        """Run the step of a sampling graph: from the hidden states to the slots and the host."""
        slots = self._slots[:size]
        if filtered:
            token_ids = filtered_draw(self._parts, slots, hidden, sampling)
        else:
            token_ids = self._model.lm_head.draw(hidden, sampling)
        self._ops.commit_tokens(slots, token_ids, self._state, self._host_ring.ring)
