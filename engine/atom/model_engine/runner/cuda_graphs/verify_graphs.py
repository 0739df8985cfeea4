"""VerifyGraphs: steps whose rows carry drafts as captured graphs, from the ring entry to the
answer.

A step is a few replays and nothing else, none of which waits for the host. Per row: drafts are
looked up, or the drafting layer makes the first draft of each row, and runs once more for each
further one. Per token, of which rows may have different numbers: the model computes the logits, a
token is drawn for each, the accepted drafts are counted, the slots advance and the host gets its
answer; last, the drafting layer processes the tokens too. Rows that use sampling options beyond
top-k, top-p and min-p are sampled eagerly in between. Captured at start beside DecodeGraphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_engine.runner.cuda_graphs.graph_parts import FILTERS, GraphParts, filtered_draw
from atom.model_engine.runner.cuda_graphs.graph_pool import Graph
from atom.model_engine.runner.host_tokens import PendingRuns
from atom.model_engine.runner.step_variant import PLAIN, StepVariant
from atom.model_engine.runner.verify_rows import VerifyRows
from atom.model_ops.attention.state_runs import StepRuns
from atom.model_ops.attention.step_plan import plan_captured_step
from atom.model_ops.backends.interface import SamplingTensors
from atom.model_ops.drafts import DraftLayout, Drafts, DrawnRuns, no_drafts
from atom.models.decoder.hidden_states import HiddenStates
from atom.speculation.proposer import Drafting, Proposer
from atom.utils.forward_context import DecodeRuns, set_forward_context


@dataclass(frozen=True, slots=True)
class VerifyVariant:
    """A key of a captured graph. size: tokens of the bucket; step: the kinds of rows it was
    captured for."""

    size: int
    step: StepVariant


@dataclass(frozen=True, slots=True)
class _Drafted:
    """Hold graphs by rows: first, of the ring entry and drafts; further, of one more draft per row,
    if they are made one after the other."""

    first: Graph
    further: Graph | None


@dataclass(frozen=True, slots=True)
class _Verified:
    """Graphs by tokens, as _Graphs of DecodeGraphs."""

    forward: Graph
    states: HiddenStates
    sampling: SamplingTensors
    samples: dict[bool, Graph]
    catch_up: Graph | None


@dataclass(frozen=True, slots=True)
class VerifyForward:
    """Hold the results of the layers for a step's T tokens: hidden [T, H], sampling, and the
    variant of the graphs. layout, drafts: of its rows, in memory that the next step overwrites."""

    hidden: torch.Tensor
    sampling: SamplingTensors
    variant: VerifyVariant
    layout: DraftLayout
    drafts: Drafts


class VerifyGraphs:
    """Holds the captured graphs of steps that verify drafts. most_drafts: of a row; sizes: buckets
    of tokens."""

    def __init__(
        self, parts: GraphParts, proposer: Proposer, most_drafts: int, sizes: list[int]
    ) -> None:
        self._parts, self._proposer, self._sizes = parts, proposer, sizes
        self._ops, self._state = parts.ops, parts.state
        device, rows = self._state.last_token.device, self._state.padding_slot
        of_rows, of_tokens = (
            torch.zeros((3, count), dtype=torch.int64, device=device)
            for count in (rows, self.most_tokens)
        )
        starts = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        runs = DecodeRuns(starts, 1 + most_drafts)
        self._layout = DraftLayout(*of_rows, *of_tokens, runs=runs)
        for slots in (self._layout.slots, self._layout.token_slots):
            slots.fill_(rows)  # padding, until a entry comes
        self._drafting = proposer.prepare(
            self._layout.slots, self._layout.wanted, no_drafts(rows, most_drafts, device)
        )
        self._drawn, self._counts = torch.zeros_like(of_tokens[0]), torch.ones_like(of_rows[0])
        self._drafted: dict[int, _Drafted] = {}
        self._verified: dict[VerifyVariant, _Verified] = {}

    @property
    def most_tokens(self) -> int:
        """Return the most tokens of a step that has a graph."""
        return self._sizes[-1]

    # ---- start-up -----------------------------------------------------------------------------

    def captures(self) -> tuple[list[Callable[[], object]], ...]:
        """Return everything that is captured, by kind, largest first."""
        return (
            [partial(self._capture_verified, variant) for variant in self._variants()],
            [partial(self._capture_drafted, size) for size in reversed(self._parts.sizes.rows)],
        )

    def capture(self, progress: Callable[[float], None]) -> None:
        """Capture every bucket; real slots and their cache stay as they are."""
        for size in reversed(self._parts.sizes.rows):
            self._drafted[size] = self._capture_drafted(size)
        variants = self._variants()
        for done, variant in enumerate(variants):
            progress(done / len(variants))
            self._verified[variant] = self._capture_verified(variant)

    # ---- steps --------------------------------------------------------------------------------

    def forward(
        self,
        rows: VerifyRows,
        appends: NDArray[np.int32],
        least: int = 0,
        step: StepVariant = PLAIN,
    ) -> VerifyForward:
        """Make drafts for the rows of a batch of decodes and run the layers for all their tokens,
        in a bucket no smaller than `least`. appends: blocks, as a batch has them; step: the batch's
        variant."""
        count, tokens = len(rows.slots), len(rows.row)
        self._parts.host_ring.post(rows.slots, appends, rows.ahead)
        drafted = self._drafted[_fitting(self._parts.sizes.rows, count)]
        drafted.first.replay()
        if drafted.further is not None:
            for _ in range(rows.most_ahead - 1):
                drafted.further.replay()
        variant = VerifyVariant(_fitting(self._sizes, max(tokens, least)), step)
        verified = self._verified[variant]
        verified.forward.replay()
        return VerifyForward(
            verified.states.last[:tokens],
            verified.sampling.first(tokens),
            variant,
            self._layout.of(count, tokens),
            self._drafting.drafts.first(count),
        )

    def sample(self, forward: VerifyForward, rows: VerifyRows, *, filtered: bool) -> PendingRuns:
        """Draw the last forward's tokens, and move the slots by the accepted ones; return each
        row's tokens, on their way to the host."""
        self._verified[forward.variant].samples[filtered].replay()
        return self._parts.host_ring.answer_runs(rows)

    def settle(
        self, forward: VerifyForward, rows: VerifyRows, drawn: torch.Tensor
    ) -> tuple[PendingRuns, torch.Tensor]:
        """Move the slots by the accepted ones of tokens [T], drawn eagerly; return each row's
        tokens, on their way to the host, and the number accepted [R]."""
        self._drawn[: len(drawn)] = drawn
        counts = self._accept(forward.layout, drawn)
        return self._parts.host_ring.answer_runs(rows), counts

    def catch_up(self, forward: VerifyForward) -> None:
        """Let the layer that drafts compute the last forward's tokens, which were sampled."""
        graph = self._verified[forward.variant].catch_up
        assert graph is not None, "a layer drafts"
        graph.replay()

    # ---- capture --------------------------------------------------------------------------------

    def _capture_drafted(self, size: int) -> _Drafted:
        pool, drafting = self._parts.pool, self._drafting.first(size)
        further = partial(self._proposer.extend, drafting)
        with pool.aside():
            self._begin(drafting)
            if self._proposer.catches_up:
                further()
        first, _ = pool.capture(partial(self._begin, drafting))
        return _Drafted(first, pool.capture(further)[0] if self._proposer.catches_up else None)

    def _begin(self, drafting: Drafting) -> None:
        layout = self._layout
        self._ops.receive_step(self._parts.host_ring.ring, layout.slots, self._state, layout.wanted)
        self._ops.lay_out_drafts(layout, self._state)
        self._proposer.begin(drafting)

    def _variants(self) -> list[VerifyVariant]:
        """Return the variants, largest first."""
        return [
            VerifyVariant(size, step)
            for size in reversed(self._sizes)
            for step in self._parts.variants
        ]

    def _capture_verified(self, variant: VerifyVariant) -> _Verified:
        pool, catch_up_decodes, size = self._parts.pool, self._parts.catch_up, variant.size
        layout = self._layout.of(min(size, len(self._layout.slots)), size)
        catch_up = None
        with pool.aside():
            states, sampling = self._forward(layout, variant.step)
            for filtered in FILTERS:
                self._sample(layout, states.last, sampling, filtered)
            if catch_up_decodes is not None:
                self._catch_up(layout, states)
        forward, (states, sampling) = pool.capture(partial(self._forward, layout, variant.step))
        samples = {
            filtered: pool.capture(partial(self._sample, layout, states.last, sampling, filtered))[
                0
            ]
            for filtered in FILTERS
        }
        if catch_up_decodes is not None:
            catch_up, _ = pool.capture(partial(self._catch_up, layout, states))
        return _Verified(forward, states, sampling, samples, catch_up)

    def _forward(
        self, layout: DraftLayout, variant: StepVariant
    ) -> tuple[HiddenStates, SamplingTensors]:
        parts, tokens = self._parts, len(layout.row)
        parts.model.set_dp_padding(tokens)
        step = self._ops.prepare_drafted(
            layout.token_slots, layout.offset, layout.drafted(self._drafting.drafts), self._state,
            parts.sizes.block_size,
        )  # fmt: skip
        starts = parts.sizes.query_starts[: tokens + 1]
        attention = parts.with_state_runs(
            plan_captured_step(step, starts, parts.sizes.max_model_len, runs=layout.runs),
            StepRuns(layout.runs.starts, layout.slots, len(layout.slots), layout.runs.longest),
        )
        with set_forward_context(
            parts.forward_context(variant, attention, token_slots=lambda: layout.token_slots)
        ):
            states: HiddenStates = parts.model.model(step.input_ids, step.positions)
        return states, SamplingTensors(step.temperature, step.seed, step.sample_positions)

    def _sample(
        self, layout: DraftLayout, hidden: torch.Tensor, sampling: SamplingTensors, filtered: bool
    ) -> None:
        if filtered:
            drawn = filtered_draw(self._parts, layout.token_slots, hidden, sampling)
        else:
            drawn = self._parts.model.lm_head.draw(hidden, sampling)
        if self._parts.catch_up is not None:
            self._drawn[: len(drawn)] = drawn
        self._accept(layout, drawn)

    def _accept(self, layout: DraftLayout, drawn: torch.Tensor) -> torch.Tensor:
        rows = len(layout.slots)
        counts = self._ops.accept_drafts(
            DrawnRuns(layout.slots, layout.first, drawn), self._drafting.drafts.first(rows),
            self._state, self._parts.host_ring.ring,
        )  # fmt: skip
        if self._parts.catch_up is not None:
            self._counts[:rows] = counts
        return counts

    def _catch_up(self, layout: DraftLayout, states: HiddenStates) -> None:
        assert self._parts.catch_up is not None, "a layer drafts"
        rows, tokens = len(layout.slots), len(layout.row)
        self._parts.catch_up.of_runs(layout, self._drawn[:tokens], self._counts[:rows], states)


def _fitting(sizes: list[int], count: int) -> int:
    return next(size for size in sizes if size >= count)
