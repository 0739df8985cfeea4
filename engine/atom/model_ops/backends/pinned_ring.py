"""PinnedRing: messages between the host and a captured step, without a copy between them.

A captured step reads the same addresses at every replay, and a copy on the device's copy engine
makes either side wait some ten microseconds. So both ends are host memory that the device accesses
itself, in rings of entries. The host writes the next entry before it submits a step; the step
counts on the device which entry is its own, and answers into the same place. Data only; the runner
that submits steps (decode_graphs.py) counts along.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom.model_ops.slots import SlotTensors

# Entries that may not have been read or answered yet: of the step that runs, of the one behind it,
# and the one that is being written.
RING_ENTRIES = 3


@dataclass(frozen=True, slots=True)
class PinnedRing:
    """The entries by which host and device exchange data of steps. said [RING_ENTRIES, 4, S ·
    groups] int32: row 0 the slots of a step's rows, rows 1 to 3 its appended blocks as slot, column
    of its tables, block id; unused entries name the padding slot. answers [RING_ENTRIES, 1, S]
    int32: tokens by row. If rows may get several tokens, said has a row 4, the number of drafts of
    each row, and answers are [RING_ENTRIES, 3, most tokens of a step]: the token drawn after each
    token, and by row the number of these that it got and the number of its drafts. Both are pinned
    if there is a GPU. turn [2] int64, on the device: steps that have received their entry, and the
    place in the rings of the last one."""

    said: torch.Tensor
    answers: torch.Tensor
    turn: torch.Tensor


def empty_ring(state: SlotTensors, several_tokens: int = 0) -> PinnedRing:
    """Return a ring whose entries name only the padding slot. several_tokens: most tokens of a step
    whose rows may get several; 0 if each row gets one."""
    slots, device = state.padding_slot, state.last_token.device
    lines = 5 if several_tokens else 4
    said = torch.full((RING_ENTRIES, lines, slots * state.num_groups), slots, dtype=torch.int32)
    shape = (3, max(slots, several_tokens)) if several_tokens else (1, slots)
    answers = torch.zeros((RING_ENTRIES, *shape), dtype=torch.int32)
    if device.type == "cuda":
        said, answers = said.pin_memory(), answers.pin_memory()
    return PinnedRing(said, answers, torch.zeros(2, dtype=torch.int64, device=device))
