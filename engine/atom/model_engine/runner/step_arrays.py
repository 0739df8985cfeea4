"""StepArrays: the host's arrays of a ragged step, before their copy to the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.batch import Slots


@dataclass(frozen=True, slots=True)
class StepArrays:
    """Hold a step's inputs as host arrays. By token [T]: input_ids (0 of decodes), positions and
    each group's slot_mapping, int64. By row: slots, contexts [R] int32, starts [R + 1] int32. By
    row that samples: sample_slots, sample_positions int64 of its draw, logits_indices int64, its
    last token."""

    input_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    slot_mapping: tuple[NDArray[np.int64], ...]
    slots: Slots
    contexts: NDArray[np.int32]
    starts: NDArray[np.int32]
    sample_slots: Slots
    sample_positions: NDArray[np.int64]
    logits_indices: NDArray[np.int64]

    def named(self) -> dict[str, NDArray[np.generic]]:
        """Return the arrays by field name; a slot mapping's name ends with its group's number."""
        by_group = {f"slot_mapping{group}": each for group, each in enumerate(self.slot_mapping)}
        return {
            "input_ids": self.input_ids,
            "positions": self.positions,
            **by_group,
            "slots": self.slots,
            "contexts": self.contexts,
            "starts": self.starts,
            "sample_slots": self.sample_slots,
            "sample_positions": self.sample_positions,
            "logits_indices": self.logits_indices,
        }
