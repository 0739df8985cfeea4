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

from atom.model_ops.slots import SlotTensors

# Letters that may not have been read or answered yet: of the step that runs, of the one behind it,
# and the one that is being written.
LETTERS = 3


@dataclass(frozen=True, slots=True)
class StepMail:
    """said [LETTERS, 4, S · groups] int32: row 0 the slots of a step's rows, rows 1 to 3 its
    appended blocks as slot, column of its tables, block id; unused entries name the padding slot.
    answers [LETTERS, 1, S] int32: tokens by row; where rows get up to K tokens [LETTERS, 1 + K, S],
    how many and then each. Both pinned where there is a GPU. turn [2] int64, on
    the device: steps that have received their letter, and the place in the rings of the last one.
    """

    said: torch.Tensor
    answers: torch.Tensor
    turn: torch.Tensor


def empty_mail(state: SlotTensors, tokens_per_row: int = 1) -> StepMail:
    """Letters that name no slot but the padding one. tokens_per_row: at most."""
    slots, device = state.padding_slot, state.last_token.device
    said = torch.full((LETTERS, 4, slots * state.num_groups), slots, dtype=torch.int32)
    lines = 1 if tokens_per_row == 1 else 1 + tokens_per_row
    answers = torch.zeros((LETTERS, lines, slots), dtype=torch.int32)
    if device.type == "cuda":
        said, answers = said.pin_memory(), answers.pin_memory()
    return StepMail(said, answers, torch.zeros(2, dtype=torch.int64, device=device))
