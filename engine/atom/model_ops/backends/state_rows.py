"""States of a step's rows, as every PyTorch backend looks them up in their slots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

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


def chunks(tokens: slice, size: int) -> Iterator[slice]:
    """Cut a row's tokens into as many at a time, the last fewer."""
    for first in range(tokens.start, tokens.stop, size):
        yield slice(first, min(first + size, tokens.stop))
