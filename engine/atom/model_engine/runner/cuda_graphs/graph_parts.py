"""GraphParts: what captured steps compute with, and how large they are.

Sizes are buckets: of rows, and where rows carry drafts of tokens. Shared by DecodeGraphs and
VerifyGraphs, whose steps take turns: they share the host_ring and the pool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from atom.model_engine.runner.cuda_graphs.catch_up_decodes import CatchUpDecodes
from atom.model_engine.runner.cuda_graphs.graph_pool import GraphPool
from atom.model_engine.runner.cuda_graphs.host_ring import HostRing
from atom.model_engine.runner.step_variant import PLAIN, StepVariant, forward_context
from atom.model_ops.attention.state_runs import StepRuns, with_state_runs
from atom.model_ops.backends.interface import LogitFilters, Ops, SamplingTensors
from atom.model_ops.slots import SlotTensors
from atom.models.decoder.causal_lm import CausalLM
from atom.utils.forward_context import AttentionMetaData, ForwardContext

# Tokens of a step with drafts that a graph takes, at most: products take longer than reading the
# weights from far fewer on.
MOST_DRAFTED_TOKENS = 512
# Samplings that have a graph, by whether they know top-k, top-p and min-p.
FILTERS = (False, True)


def bucket_sizes(max_num_seqs: int) -> list[int]:
    """List the sizes 1, 2, 4, 8, then every 16 to `max_num_seqs` (itself included), ascending."""
    sizes = [size for size in (1, 2, 4, 8) if size <= max_num_seqs]
    sizes += range(16, max_num_seqs + 1, 16)
    return sizes if sizes[-1] == max_num_seqs else [*sizes, max_num_seqs]


def token_sizes(most: int) -> list[int]:
    """Return the token counts to capture for steps whose rows carry drafts, ascending to `most`:
    coarser as they grow, since the cost of padding shrinks."""
    sizes = [size for size in (1, 2, 4, 8) if size <= most]
    for first, end, step in ((16, 128, 16), (128, 256, 32), (256, MOST_DRAFTED_TOKENS + 1, 64)):
        sizes += range(first, min(end, most + 1), step)
    return sizes if sizes[-1] == most else [*sizes, most]


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """Sizes of captured steps. block_size, max_model_len: tokens; rows: buckets of decode steps;
    query_starts [n + 1] int32, of rows of one token each; state_drafts: most drafts of a row, if
    layers keep states, which do not take them in."""

    block_size: int
    max_model_len: int
    rows: list[int]
    query_starts: torch.Tensor
    state_drafts: int = 0


@dataclass(frozen=True, slots=True)
class GraphParts:
    """The shared parts of captured steps. catch_up: if a layer drafts; variants: of the captured
    steps."""

    model: CausalLM
    ops: Ops
    state: SlotTensors
    sizes: GraphSizes
    host_ring: HostRing
    pool: GraphPool
    catch_up: CatchUpDecodes | None = None
    variants: tuple[StepVariant, ...] = (PLAIN,)

    def forward_context(
        self,
        variant: StepVariant,
        attention: tuple[AttentionMetaData, ...],
        token_slots: Callable[[], torch.Tensor],
        logits_indices: torch.Tensor | None = None,
    ) -> ForwardContext:
        """Build the context of a captured step. token_slots: finds the slots [T] of the tokens'
        rows, if the variant asks for them."""
        of_tokens = {}
        if variant.columns:
            slots = token_slots()
            of_tokens = {name: self.state.column(name)[slots] for name in variant.columns}
        return forward_context(attention, logits_indices, of_tokens)

    def with_state_runs(
        self, attention: tuple[AttentionMetaData, ...], runs: StepRuns
    ) -> tuple[AttentionMetaData, ...]:
        """Add the order of a step in states, if layers keep any and rows carry drafts."""
        if not self.sizes.state_drafts:
            return attention
        return with_state_runs(attention, runs, self.state, self.sizes.state_drafts)


def filtered_draw(
    parts: GraphParts, slots: torch.Tensor, hidden: torch.Tensor, sampling: SamplingTensors
) -> torch.Tensor:
    """Draw within whatever top-k, top-p and min-p the rows may have when the graph is replayed."""
    state, logits = parts.state, parts.model.compute_logits(hidden)
    filters = LogitFilters(
        temperature=sampling.temperature,
        top_k=state.sampling.top_k[slots],
        top_p=state.sampling.top_p[slots],
        min_p=state.sampling.min_p[slots],
        candidates=logits.shape[1],
        any_top_p=True,
        any_min_p=True,
    )
    return parts.ops.sample(parts.ops.filter_logits(logits, filters), sampling)
