"""States of a step's rows, as every PyTorch backend reads and passes them on.

Called by the backends' delta_net.py, state_space_dual.py and short_convolution.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Self, TypeVar

import torch
import torch.nn.functional as F

from atom.model_ops.linear_attention import ConvWeight
from atom.utils.forward_context import AttentionMetaData


def states_before(states: torch.Tensor, step: AttentionMetaData, rows: slice) -> torch.Tensor:
    """Gather the states of rows from their slots in states [slots, ..]; zeros for rows that
    begin."""
    assert step.slots is not None, "layers keep states"
    counts = step.query_starts[1:] - step.query_starts[:-1]
    begins = (step.context_lens <= counts)[rows]
    found = states[step.slots[rows]]
    return found.masked_fill(begins.view(-1, *[1] * (found.dim() - 1)), 0.0)


@dataclass(frozen=True, slots=True)
class StateRow:
    """A row of a step: its slot, and slices of the step's tokens: kept, after which the state is
    stored in the slot, and rest, the tokens after them."""

    index: int
    slot: int
    kept: slice
    rest: slice

    @property
    def own(self) -> slice:
        """Return the slice of all the row's tokens."""
        return slice(self.kept.start, self.rest.stop)


def state_rows(step: AttentionMetaData, first: int = 0) -> Iterator[StateRow]:
    """Yield the step's rows from `first` on that have tokens; the host waits for the device's
    values."""
    assert step.slots is not None, "layers keep states"
    starts, slots = step.query_starts.tolist(), step.slots.tolist()
    kept = None if step.num_kept is None else step.num_kept.tolist()
    for index in range(first, len(slots)):
        begin, end = starts[index], starts[index + 1]
        if begin == end:  # of a captured step
            continue
        behind = end if kept is None else begin + kept[index]
        yield StateRow(index, slots[index], slice(begin, behind), slice(behind, end))


def single_decodes(step: AttentionMetaData) -> int:
    """Count the step's first rows that have exactly one token each, as far as that is known."""
    return step.num_decodes if step.num_kept is None else 0


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """Base of the inputs of a rule: tensors whose first dimension is the tokens."""

    def of(self, tokens: slice) -> Self:
        """Take some of the tokens."""
        return type(self)(*(getattr(self, each.name)[tokens] for each in fields(self)))


Inputs = TypeVar("Inputs", bound=TokenInputs)
# Inputs of some tokens of a row, and the state before them → their answers, and the state after.
Rule = Callable[[Inputs, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def pass_states(
    inputs: Inputs,
    states: torch.Tensor,
    out: torch.Tensor,
    step: AttentionMetaData,
    rule: Rule[Inputs],
    *,
    size: int = sys.maxsize,
    decode: Rule[Inputs] | None = None,
) -> None:
    """Compute each row's answers by a rule, into out [T, ..], and store its state after the kept
    tokens. size: the most tokens that the rule takes at once; decode: the rule of all rows of one
    token together."""
    first = single_decodes(step) if decode else 0
    if decode and first and step.slots is not None:
        rows = slice(0, first)
        before = states_before(states, step, rows)
        out[rows], states[step.slots[rows]] = decode(inputs.of(rows), before)
    for row in state_rows(step, first):
        state = states_before(states, step, slice(row.index, row.index + 1))[0]
        for tokens in (row.kept, row.rest):
            for start in range(tokens.start, tokens.stop, size):
                own = slice(start, min(start + size, tokens.stop))
                out[own], state = rule(inputs.of(own), state)
            if tokens is row.kept:
                states[row.slot] = state


def convolve_rows(
    x: torch.Tensor,
    weight: ConvWeight,
    tails: torch.Tensor,
    step: AttentionMetaData,
    out: torch.Tensor,
    *,
    first: int = 0,
) -> None:
    """Convolve each row's tokens from the row `first` on, into out [T, C], and store its tail after
    the kept tokens."""
    taps = weight.taps.float()[:, None]
    bias = None if weight.bias is None else weight.bias.float()
    for row in state_rows(step, first):
        tail = states_before(tails, step, slice(row.index, row.index + 1))[0]
        seen = torch.cat((tail, x[row.own].t().float()), dim=1)  # [C, W - 1 + tokens]
        mixed = F.conv1d(seen[None], taps, bias, groups=len(taps))[0]
        out[row.own] = (F.silu(mixed) if weight.has_silu else mixed).t().to(x.dtype)
        kept = row.kept.stop - row.kept.start
        tails[row.slot] = seen[:, kept : kept + tails.shape[2]]
