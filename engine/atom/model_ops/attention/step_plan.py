"""Plan the places of a step's tokens in the cache, once for all layers of a group.

`plan_step` plans a ragged step whose rows the host knows, `plan_captured_step` a decode step that a
graph replays, `plan_captured_prompts` one with prompts: only sizes are known for these, and the
tensors are the graph's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_ops.slots import DecodeInputs
from atom.utils.forward_context import AttentionMetaData, DecodeRuns, PromptPlan
from atom.utils.long_chunks import long_chunks
from atom.utils.row_groups import are_even, long_prompts


@dataclass(frozen=True, slots=True)
class StepRows:
    """A ragged step's rows as the host knows them, [R] each: tokens computed before, tokens of this
    step; the first num_decodes have one token."""

    num_computed: NDArray[np.int32]
    num_scheduled: NDArray[np.int32]
    num_decodes: int

    @property
    def context_lens(self) -> NDArray[np.int32]:
        return self.num_computed + self.num_scheduled


@dataclass(frozen=True, slots=True)
class StepTensors:
    """A step's rows on the device: query_starts [R + 1], context_lens [R] int32, and for each group
    of layers slot_mapping [T] int64 and block_tables [R, blocks] int32; slots [R] int64; last_seen
    [T] int32, the last position that each token attends to, None if no token sees a later one;
    positions [T] int64, of each token, if some sees a later one."""

    query_starts: torch.Tensor
    context_lens: torch.Tensor
    slot_mapping: tuple[torch.Tensor, ...]
    block_tables: tuple[torch.Tensor, ...]
    slots: torch.Tensor | None = None
    last_seen: torch.Tensor | None = None
    positions: torch.Tensor | None = None


def plan_step(rows: StepRows, tensors: StepTensors) -> tuple[AttentionMetaData, ...]:
    """Plan the step's attention, once for each group of layers."""
    contexts = rows.context_lens
    even = are_even(contexts[: rows.num_decodes])
    counts = rows.num_computed, rows.num_scheduled, rows.num_decodes
    return _by_group(
        tensors,
        num_decodes=rows.num_decodes,
        max_query_len=int(rows.num_scheduled.max()),
        max_context_len=int(contexts.max()),
        even_contexts=even,
        prompts=PromptPlan(
            equal=long_prompts(*counts),
            chunks=long_chunks(*counts),
            context=int(contexts[rows.num_decodes :].sum()),
            last_seen=tensors.last_seen,
            positions=tensors.positions,
        ),
    )


def plan_captured_step(
    inputs: DecodeInputs,
    query_starts: torch.Tensor,
    max_context_len: int,
    *,
    even: bool = False,
    runs: DecodeRuns | None = None,
    slots: torch.Tensor | None = None,
) -> tuple[AttentionMetaData, ...]:
    """Plan a step of decodes that a graph replays, for each group of layers; query_starts [R + 1]
    int32 counts the decodes. even: no row will outlast all others; runs: the decodes of one
    sequence, if it may have several; slots [R] int64, of each row."""
    tensors = StepTensors(
        query_starts,
        inputs.context_lens,
        tuple(inputs.slot_mapping),
        tuple(inputs.block_tables),
        slots,
    )
    return _by_group(
        tensors,
        num_decodes=len(inputs.context_lens),
        max_query_len=1,
        max_context_len=max_context_len,
        even_contexts=even,
        runs=runs,
    )


def plan_captured_prompts(
    tensors: StepTensors, num_decodes: int, max_context_len: int
) -> tuple[AttentionMetaData, ...]:
    """Plan a step of so many decodes, and of prompts, that a graph replays, for each group of
    layers. Rows may be padding: decodes of context 0, and prompts without tokens."""
    return _by_group(
        tensors,
        num_decodes=num_decodes,
        max_query_len=len(tensors.slot_mapping[0]) - num_decodes,
        max_context_len=max_context_len,
        has_padding=True,
    )


def _by_group(tensors: StepTensors, **step: Any) -> tuple[AttentionMetaData, ...]:
    """Describe the step, which is the same for all groups, once for each of them."""
    return tuple(
        AttentionMetaData(
            query_starts=tensors.query_starts,
            context_lens=tensors.context_lens,
            block_tables=block_tables,
            slot_mapping=slot_mapping,
            slots=tensors.slots,
            **step,
        )
        for slot_mapping, block_tables in zip(
            tensors.slot_mapping, tensors.block_tables, strict=True
        )
    )
