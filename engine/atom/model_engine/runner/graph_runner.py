"""DecodeGraphs: a decode step as captured graphs per batch size, one forward and two samplings.

Replaying the forward appends blocks, builds the inputs from the slots and runs the layers; the host
only says which slots run and which blocks were appended. Replaying the sampling turns the hidden
states into tokens, advances the slots and answers the host (StepMailbox); of the two, one knows
temperatures alone, the other top-k, top-p and min-p too. A batch whose rows ask for more than that,
or whose sampling has to wait for something, keeps the forward's graph and samples eagerly. Sizes
are buckets: a batch runs in the smallest that holds it, padded with rows that compute nothing of
consequence. Large buckets have two variants: attention need not split the rows of a step in which
none is much longer than the others. Where rows may carry drafts there is a forward for these, too:
its rows are tokens, that the runner places (DraftedTokens), and it is sampled eagerly. Captured at
start, largest first, sharing one memory pool. Identical tokens with graphs off is a test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.runner.host_tokens import PendingTokens
from atom.model_engine.runner.step_mailbox import StepMailbox
from atom.model_ops.attention.step_plan import plan_captured_step
from atom.model_ops.backends.interface import LogitFilters, Ops, SamplingTensors
from atom.model_ops.drafts import keep_newest
from atom.model_ops.slots import DecodeInputs, SlotTensors
from atom.models.decoder import CausalLM
from atom.models.hidden_states import HiddenStates
from atom.utils.forward_context import ForwardContext, set_forward_context
from atom.utils.row_groups import are_even

# Buckets from which a step of even rows has a graph of its own; below, every row is split anyway.
_EVEN_FROM = 48
# Variants whose capture tells what the rest will take.
_MEASURED = 5


def bucket_sizes(max_num_seqs: int) -> list[int]:
    """1, 2, 4, 8, then every 16 to `max_num_seqs` (itself included), ascending."""
    sizes = [size for size in (1, 2, 4, 8) if size <= max_num_seqs]
    sizes += range(16, max_num_seqs + 1, 16)
    return sizes if sizes[-1] == max_num_seqs else [*sizes, max_num_seqs]


@dataclass(frozen=True, slots=True)
class GraphVariant:
    """size: rows of the bucket; even: captured for rows none of which outlasts the others; drafted:
    of tokens of decodes with drafts."""

    size: int
    even: bool
    drafted: bool = False

    @property
    def samplings(self) -> tuple[bool, ...]:
        """Those that have a graph, by whether they know top-k, top-p and min-p."""
        return () if self.drafted else (False, True)


@dataclass(frozen=True, slots=True)
class DraftedTokens:
    """Tokens of decodes that carry drafts: slots, offsets (how many drafts behind the slot's newest
    token), token_ids (of drafts), [n] int64 each on the device."""

    slots: torch.Tensor
    offsets: torch.Tensor
    token_ids: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Graphs:
    """The graphs of a variant, and what the forward leaves to sampling: states of the bucket's
    rows, sampling: of these. samples: by whether they know top-k, top-p and min-p."""

    forward: torch.cuda.CUDAGraph
    states: HiddenStates
    sampling: SamplingTensors
    samples: dict[bool, torch.cuda.CUDAGraph]


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """What the layers leave to sampling, of the R rows that sample: hidden [R, H]; slots [R] int64
    and sampling, on the device. variant: of the graph that ran them (its tensors are good until the
    next replay, its slots not advanced yet), if one did. states: of the same rows, where a graph
    ran them."""

    hidden: torch.Tensor
    slots: torch.Tensor
    sampling: SamplingTensors
    variant: GraphVariant | None
    states: HiddenStates | None = None


class DecodeGraphs:
    def __init__(
        self,
        model: CausalLM,
        ops: Ops,
        state: SlotTensors,
        block_size: int,
        max_model_len: int,
    ) -> None:
        self._model = model
        self._ops = ops
        self._state = state
        self._block_size = block_size
        self._max_model_len = max_model_len
        num_slots = state.padding_slot
        self._sizes = bucket_sizes(num_slots)
        self._graphs: dict[GraphVariant, _Graphs] = {}
        self.least = 0  # bucket of the next forward, where ranks have agreed on one
        # By bucket, where other ranks' steps may need this one's experts.
        self._served: dict[int, torch.cuda.CUDAGraph] = {}
        # Of the rows of the step that runs, as it received them.
        self._slots = torch.full_like(state.last_token[:num_slots], num_slots)
        self._query_starts = torch.arange(
            num_slots + 1, dtype=torch.int32, device=state.last_token.device
        )
        # Of the tokens of a step with drafts.
        self._drafted = DraftedTokens(
            self._slots.clone(), torch.zeros_like(self._slots), torch.zeros_like(self._slots)
        )
        self._mailbox = StepMailbox(state)
        self._pool: Any = None  # torch's handle of the pool that all graphs share

    def measure_bytes(self) -> int:
        """What all graphs will take of the device's memory, from the first few: they hold the pool
        that the others share. These graphs are not to be replayed."""
        variants = self._variants()
        free = [_free_bytes()]
        for variant in variants[:_MEASURED]:
            self._graphs[variant] = self._capture(variant)
            free.append(_free_bytes())
        first, others = free[0] - free[1], free[1] - free[-1]
        each = others / (len(free) - 2) if len(free) > 2 else 0
        served = len(self._sizes) if self._model.shares_tokens else 0
        return int(first + each * (len(variants) + served - 1))

    def capture(self, progress: Callable[[float], None]) -> None:
        """Capture every bucket, largest first; real slots and their cache stay as they are."""
        variants = self._variants()
        for done, variant in enumerate(variants):
            progress(done / len(variants))
            self._graphs[variant] = self._capture(variant)
        if self._model.shares_tokens:
            self._served = {size: self._capture_served(size) for size in reversed(self._sizes)}
        self._mailbox.restart()

    def rehearse(self) -> None:
        """Run once what graphs will be captured of, a bucket of each power of two."""
        for variant in self._variants():
            if variant.size & (variant.size - 1) == 0 or variant.size == self._sizes[-1]:
                self._run(variant)

    def forward(self, batch: ScheduledBatch) -> ForwardOutput:
        """Run the layers of a batch of decodes."""
        rows = len(batch.slots)
        size = next(size for size in self._sizes if size >= max(rows, self.least))
        self._mailbox.post(batch.slots, batch.block_appends)
        variant = GraphVariant(size, size >= _EVEN_FROM and are_even(batch.context_lens))
        graphs = self._graphs[variant]
        graphs.forward.replay()
        sampling = SamplingTensors(
            temperature=graphs.sampling.temperature[:rows],
            seed=graphs.sampling.seed[:rows],
            position=graphs.sampling.position[:rows],
        )
        states = graphs.states.first(rows)
        return ForwardOutput(states.last, self._slots[:rows], sampling, variant, states)

    def serve(self, size: int) -> None:
        """Compute this rank's experts for others' tokens, in a step of this bucket."""
        self._served[size].replay()

    @property
    def most_drafted(self) -> int:
        """Tokens of decodes with drafts that a graph takes."""
        return self._sizes[-1] if self._state.tokens is not None else 0

    def forward_drafted(self, tokens: DraftedTokens) -> ForwardOutput:
        """Run the layers of decodes with drafts, whose blocks were appended; to be sampled eagerly,
        before the next replay."""
        count = len(tokens.slots)
        size = next(size for size in self._sizes if size >= count)
        ours = self._drafted
        ours.slots[:count] = tokens.slots
        ours.slots[count:size] = self._state.padding_slot
        ours.offsets[:count] = tokens.offsets
        ours.token_ids[:count] = tokens.token_ids
        graphs = self._graphs[GraphVariant(size, even=False, drafted=True)]
        graphs.forward.replay()
        sampling = SamplingTensors(
            temperature=graphs.sampling.temperature[:count],
            seed=graphs.sampling.seed[:count],
            position=graphs.sampling.position[:count],
        )
        states = graphs.states.first(count)
        return ForwardOutput(states.last, ours.slots[:count], sampling, None, states)

    def sample(self, forward: ForwardOutput, *, filtered: bool) -> PendingTokens:
        """Sample the last forward's rows (`filtered`: by their top-k, top-p and min-p) and advance
        their slots; their tokens, on their way to the host."""
        assert forward.variant is not None, "an eager forward has no graph to sample with"
        self._graphs[forward.variant].samples[filtered].replay()
        return self._mailbox.answer(len(forward.slots))

    def _variants(self) -> list[GraphVariant]:
        """Largest first, so that the pool is made once."""
        drafts = self._state.tokens is not None
        return [
            variant
            for size in reversed(self._sizes)
            for variant in (
                GraphVariant(size, even=False),
                *([GraphVariant(size, even=True)] if size >= _EVEN_FROM else []),
                *([GraphVariant(size, even=False, drafted=True)] if drafts else []),
            )
        ]

    def _capture(self, variant: GraphVariant) -> _Graphs:
        # Once outside the graphs: kernels compile and libraries allocate their workspaces.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._run(variant)
        torch.cuda.current_stream().wait_stream(stream)
        forward = torch.cuda.CUDAGraph()
        with torch.cuda.graph(forward, pool=self._pool):
            states, sampling = self._forward(variant)
        self._pool = self._pool or forward.pool()
        samples = {}
        for filtered in variant.samplings:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                self._sample(variant.size, states.last, sampling, filtered)
            samples[filtered] = graph
        return _Graphs(forward, states, sampling, samples)

    def _run(self, variant: GraphVariant) -> None:
        """What the variant's graphs are captured of, without graphs."""
        states, sampling = self._forward(variant)
        for filtered in variant.samplings:
            self._sample(variant.size, states.last, sampling, filtered)

    def _capture_served(self, size: int) -> torch.cuda.CUDAGraph:
        self._model.agree(size)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._model.serve()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._model.serve()
        return graph

    def _forward(self, variant: GraphVariant) -> tuple[HiddenStates, SamplingTensors]:
        """What a forward graph replays: from the slots to the hidden states."""
        size = variant.size
        self._model.agree(size)
        step = self._drafted_inputs(size) if variant.drafted else self._decode_inputs(size)
        starts = self._query_starts[: size + 1]
        attention = plan_captured_step(step, starts, self._max_model_len, even=variant.even)
        with set_forward_context(ForwardContext(attention)):
            states = self._model(step.input_ids, step.positions)
        return states, SamplingTensors(step.temperature, step.seed, step.sample_positions)

    def _decode_inputs(self, size: int) -> DecodeInputs:
        self._ops.receive_step(self._mailbox.mail, self._slots, self._state)
        return self._ops.prepare_decode(self._slots[:size], self._state, self._block_size)

    def _drafted_inputs(self, size: int) -> DecodeInputs:
        tokens = self._drafted
        return self._ops.prepare_drafted(
            tokens.slots[:size], tokens.offsets[:size], tokens.token_ids[:size], self._state,
            self._block_size,
        )  # fmt: skip

    def _sample(
        self, size: int, hidden: torch.Tensor, sampling: SamplingTensors, filtered: bool
    ) -> None:
        """What a sampling graph replays: from the hidden states to the slots and the host."""
        slots = self._slots[:size]
        if filtered:
            logits = self._model.compute_logits(hidden)
            logits = self._ops.filter_logits(logits, self._row_filters(slots, sampling, logits))
            token_ids = self._ops.sample(logits, sampling)
        else:
            token_ids = self._model.draw(hidden, sampling)
        self._ops.commit_tokens(slots, token_ids, self._state, self._mailbox.mail)
        if self._state.tokens is not None:
            keep_newest(slots, self._state)

    def _row_filters(
        self, slots: torch.Tensor, sampling: SamplingTensors, logits: torch.Tensor
    ) -> LogitFilters:
        """Whatever filters the rows may have when the graph is replayed."""
        return LogitFilters(
            temperature=sampling.temperature,
            top_k=self._state.top_k[slots],
            top_p=self._state.top_p[slots],
            min_p=self._state.min_p[slots],
            candidates=logits.shape[1],
            any_top_p=True,
            any_min_p=True,
        )


def _free_bytes() -> int:
    """Of the device, beside what torch only keeps for reuse."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]
