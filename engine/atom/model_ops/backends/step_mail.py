"""StepMail: what the host and a captured step say to each other, without a copy between them.

A captured step reads the same addresses at every replay, and a copy on the device's copy engine
costs some ten microseconds of waiting on either side. So both ends are host memory that the device
reaches itself, in rings of letters: the host writes the next one before it submits a step, the step
counts on the device which one is its own, and answers into the same place. Data only; whoever
submits steps (graph_runner.py) keeps count with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Letters that may not have been read or answered yet: of the step that runs, of the one behind it,
# and the one that is being written.
LETTERS = 3


@dataclass(frozen=True, slots=True)
class StepMail:
    """said [LETTERS, 4, S] int32: row 0 the slots of a step's rows, rows 1 to 3 its appended blocks
    as slot, index in its table, block id; unused entries name the padding slot. answers [LETTERS,
    S] int32: tokens by row. Both pinned where there is a GPU. turn [2] int64, on the device: steps
    that have received their letter, and the place in the rings of the last one."""

    said: torch.Tensor
    answers: torch.Tensor
    turn: torch.Tensor


def empty_mail(num_slots: int, padding_slot: int, device: torch.device) -> StepMail:
    """Letters that name nobody."""
    said = torch.full((LETTERS, 4, num_slots), padding_slot, dtype=torch.int32)
    answers = torch.zeros((LETTERS, num_slots), dtype=torch.int32)
    if device.type == "cuda":
        said, answers = said.pin_memory(), answers.pin_memory()
    return StepMail(said, answers, torch.zeros(2, dtype=torch.int64, device=device))
