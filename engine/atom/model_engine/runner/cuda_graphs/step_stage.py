"""StepStage: the memory that a captured step with prompts reads its inputs from.

The host fills it by one copy before each replay. A bucket is larger than most steps: the step's
decodes and its prompts are followed by padding, tokens that no row has and rows without tokens,
which change no slot and no cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_engine.runner.cuda_graphs.prompt_buckets import PromptBucket
from atom.model_engine.runner.step_arrays import StepArrays
from atom.utils.packed_arrays import Packing


@dataclass(frozen=True, slots=True)
class StagedInputs:
    """StepArrays on the device, in a bucket's sizes."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: tuple[torch.Tensor, ...]
    slots: torch.Tensor
    contexts: torch.Tensor
    starts: torch.Tensor
    sample_slots: torch.Tensor
    sample_positions: torch.Tensor
    logits_indices: torch.Tensor


class StepStage:
    """Holds a captured step's inputs on the device. inputs: padding alone until a step is sent."""

    def __init__(
        self, bucket: PromptBucket, num_groups: int, padding_slot: int, device: torch.device
    ) -> None:
        self._bucket, self._padding_slot = bucket, padding_slot
        padding = padded(_no_step(num_groups), 0, bucket, padding_slot).named()
        self._packing = Packing(padding)
        self._on_device = torch.empty(self._packing.size, dtype=torch.uint8, device=device)
        self._send(padding)
        tensors = self._packing.tensors(self._on_device)
        groups = tuple(tensors.pop(f"slot_mapping{group}") for group in range(num_groups))
        self.inputs = StagedInputs(slot_mapping=groups, **tensors)

    def send(self, step: StepArrays, decodes: int) -> None:
        """Copy a step, whose first `decodes` rows are decodes, to the stage, in stream order."""
        self._send(padded(step, decodes, self._bucket, self._padding_slot).named())

    def _send(self, arrays: dict[str, NDArray[np.generic]]) -> None:
        # torch keeps pinned blocks for reuse, and this one until the copy has happened.
        packed = torch.empty(
            self._packing.size, dtype=torch.uint8, pin_memory=self._on_device.is_cuda
        )
        for name, place in self._packing.arrays(packed.numpy()).items():
            np.copyto(place, arrays[name])
        self._on_device.copy_(packed, non_blocking=True)


def padded(step: StepArrays, decodes: int, bucket: PromptBucket, padding_slot: int) -> StepArrays:
    """Pad the step to the bucket's sizes; its first `decodes` rows are decodes."""
    rows, gap = bucket.decodes + bucket.rows, bucket.decodes - decodes

    def spread(array: NDArray[Any], size: int, padding: int) -> NDArray[Any]:
        """Place decodes at the start, and prompts after the bucket's number of decodes."""
        spread = np.full(size, padding, dtype=array.dtype)
        spread[:decodes] = array[:decodes]
        spread[bucket.decodes :][: len(array) - decodes] = array[decodes:]
        return spread

    def together(array: NDArray[Any], padding: int) -> NDArray[Any]:
        return np.concatenate([array, np.full(rows - len(array), padding, dtype=array.dtype)])

    starts = np.full(rows + 1, step.starts[-1] + gap, dtype=np.int32)
    starts[: bucket.decodes] = np.arange(bucket.decodes)
    starts[bucket.decodes :][: len(step.starts) - decodes] = step.starts[decodes:] + gap
    return StepArrays(
        input_ids=spread(step.input_ids, bucket.tokens, 0),
        positions=spread(step.positions, bucket.tokens, 0),
        slot_mapping=tuple(spread(each, bucket.tokens, -1) for each in step.slot_mapping),
        slots=spread(step.slots, rows, padding_slot),
        contexts=spread(step.contexts, rows, 0),
        starts=starts,
        sample_slots=together(step.sample_slots, padding_slot),
        sample_positions=together(step.sample_positions, 0),
        logits_indices=together(step.logits_indices + gap * (step.logits_indices >= decodes), 0),
    )


def _no_step(num_groups: int) -> StepArrays:
    none = np.zeros(0, dtype=np.int64)
    no_rows = none.astype(np.int32)
    return StepArrays(
        input_ids=none,
        positions=none,
        slot_mapping=(none,) * num_groups,
        slots=none,
        contexts=no_rows,
        starts=np.zeros(1, dtype=np.int32),
        sample_slots=none,
        sample_positions=none,
        logits_indices=none,
    )
