"""InputBatch: the runner's persistent batch — a slot per running sequence — and a step's tensors.

The state of a decode lives on the device: last token, position, block table, temperature and seed
of every slot. A step that only decodes needs nothing from the host but which slots run
and which blocks were appended; the token that one step samples is the input of the next without
visiting the host (deferred output, docs/adr/0002). Prompts come from the host, which keeps their
tokens and a copy of the block tables to build ragged steps with vector operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_engine.batch import NewRow, ScheduledBatch, Slots
from atom.model_engine.row_columns import ROW_COLUMNS
from atom.model_engine.runner.image_inputs import ImageInputs
from atom.model_engine.runner.slots.slot_columns import SlotState
from atom.model_engine.runner.step_arrays import StepArrays
from atom.model_engine.runner.step_variant import PLAIN, StepVariant
from atom.model_ops.attention.step_plan import StepRows, StepTensors, plan_step
from atom.utils.device import upload, upload_together
from atom.utils.forward_context import AttentionMetaData


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Inputs of one step, on the device. input_ids, positions: [T] int64; attention: by group of
    layers; logits_indices: [n] int64, the last tokens of the rows that sample (of the first row
    when none does), None when they are all the step's tokens; sample_slots: [R'] int64, their
    slots; sample_positions: [R'] int64, of the tokens that they draw; slots: [R] int64 of all
    rows; of_tokens: by row column the numbers [T] of the tokens' rows, of the step's variant."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    attention: tuple[AttentionMetaData, ...]
    slots: torch.Tensor
    logits_indices: torch.Tensor | None
    sample_slots: torch.Tensor
    sample_positions: torch.Tensor
    of_tokens: Mapping[str, torch.Tensor]


class InputBatch:
    images: ImageInputs | None = None  # of models that read images
    sees_whole = False  # of encoders: every token attends to its whole prompt

    def __init__(
        self, slots: SlotState, max_model_len: int, block_size: int, device: torch.device
    ) -> None:
        self._device = device
        self._block_size = block_size
        self._slots = slots
        num_slots = slots.device.padding_slot
        self._token_ids = np.zeros((num_slots, max_model_len), dtype=np.int32)  # of prompts
        # Of each row, by column; an engine that serves plain rows alone has none.
        self._numbers = {
            name: np.full(num_slots, ROW_COLUMNS[name].empty, dtype=ROW_COLUMNS[name].kept)
            for name in slots.served.columns
        }
        self._groups = slots.device.num_groups
        # As on the device: the groups' tables one after another.
        self._block_tables = np.zeros(
            (num_slots, slots.device.block_tables.shape[1]), dtype=np.int32
        )

    # ---- changes ------------------------------------------------------------------------------

    def apply(self, batch: ScheduledBatch) -> None:
        """Apply the batch's changes to the host's state; `enter` and `append_blocks` update the
        device."""
        size = self._slots.device.max_blocks
        if self.images is not None:
            self.images.enter(batch.new_rows)
        for row in batch.new_rows:
            self._token_ids[row.slot, : len(row.token_ids)] = row.token_ids
            for name, numbers in self._numbers.items():
                numbers[row.slot] = getattr(row, name)
            for group, block_ids in enumerate(row.block_ids):
                first = group * size
                self._block_tables[row.slot, first : first + len(block_ids)] = block_ids
        slots, columns, block_ids = batch.block_appends.T
        self._block_tables[slots, columns] = block_ids

    def append_blocks(self, batch: ScheduledBatch) -> None:
        """Write the appended blocks into the device's tables (a graph does this itself)."""
        if len(batch.block_appends):
            slots, columns, block_ids = self._to_device(batch.block_appends.T)
            self._slots.device.block_tables[slots.long(), columns.long()] = block_ids

    def enter(self, rows: tuple[NewRow, ...]) -> None:
        """Send rows that take a slot to the device, after `apply`: for their sampling, and for
        steps whose inputs the device gathers itself. A step of `prepare` does not need this."""
        slots = np.array([row.slot for row in rows])
        # No longer than the longest of them: rows of the table are mostly unused.
        used = max(len(block_ids) for row in rows for block_ids in row.block_ids)
        first = np.arange(self._groups)[:, None] * self._slots.device.max_blocks
        columns = (first + np.arange(used)).ravel()
        self._slots.enter(rows, self._block_tables[np.ix_(slots, columns)], columns)

    # ---- a ragged step ------------------------------------------------------------------------

    def arrays(self, batch: ScheduledBatch) -> StepArrays:
        """Return the host's arrays of the step. Call `apply` first."""
        counts = batch.num_scheduled_tokens
        starts = np.zeros(len(counts) + 1, dtype=np.int32)
        np.cumsum(counts, out=starts[1:])
        # Position of every token: its index in the step, shifted from the row's start to the row's
        # position.
        positions = np.arange(starts[-1], dtype=np.int64)
        positions += np.repeat(batch.num_computed_tokens - starts[:-1], counts)
        samples, context_lens = batch.samples, batch.context_lens
        return StepArrays(
            input_ids=self._input_ids(batch),
            positions=positions,
            slot_mapping=tuple(
                self._slot_mapping(batch, positions, group) for group in range(self._groups)
            ),
            slots=batch.slots,
            contexts=context_lens,
            starts=starts,
            sample_slots=batch.slots[samples],
            sample_positions=context_lens[samples].astype(np.int64),
            logits_indices=starts[1:][samples].astype(np.int64) - 1,
        )

    def prepare(self, batch: ScheduledBatch) -> StepInputs:
        """Return the step's inputs, after `apply` and `append_blocks`."""
        step = self.arrays(batch)
        arrays = step.named()
        if len(step.logits_indices) == batch.total_tokens_num:
            del arrays["logits_indices"]  # all of them
        elif len(step.logits_indices) == 0:
            arrays["logits_indices"] = step.starts[1:2].astype(np.int64) - 1
        for group in range(self._groups):
            arrays[f"tables{group}"] = self._used_tables(batch.slots, step.contexts, group)
        columns = self.variant(batch).columns
        for name in columns:
            numbers = self._numbers[name][batch.slots]
            arrays[name] = np.repeat(numbers, batch.num_scheduled_tokens)
        if "position_delta" in columns and self.images is not None:
            arrays["position_delta"] = self.images.shifts(batch, arrays["position_delta"])
        seen = self._last_seen(batch, step.positions)
        if seen is not None:
            arrays["last_seen"] = seen
        sent = upload_together(arrays, self._device)
        # Of decodes only the device knows the newest token.
        decodes = batch.num_decodes
        if decodes:
            last_token = self._slots.device.last_token
            sent["input_ids"][:decodes] = last_token[sent["slots"][:decodes]]
        groups = range(self._groups)
        tensors = StepTensors(
            query_starts=sent["starts"],
            context_lens=sent["contexts"],
            slot_mapping=tuple(sent[f"slot_mapping{group}"] for group in groups),
            block_tables=tuple(sent[f"tables{group}"] for group in groups),
            slots=sent["slots"],
            last_seen=sent.get("last_seen"),
            positions=sent["positions"],
        )
        rows = StepRows(batch.num_computed_tokens, batch.num_scheduled_tokens, decodes)
        return StepInputs(
            input_ids=sent["input_ids"],
            positions=sent["positions"],
            attention=plan_step(rows, tensors),
            logits_indices=sent.get("logits_indices"),
            slots=sent["slots"],
            sample_slots=sent["sample_slots"],
            sample_positions=sent["sample_positions"],
            of_tokens={name: sent[name] for name in columns},
        )

    def _last_seen(
        self, batch: ScheduledBatch, positions: NDArray[np.int64]
    ) -> NDArray[np.int32] | None:
        """Return the last position that each of the step's tokens [T] attends to; None if none
        attends to a later one."""
        if self.sees_whole:
            return np.repeat(batch.context_lens - 1, batch.num_scheduled_tokens).astype(np.int32)
        return None if self.images is None else self.images.last_seen(batch, positions)

    def variant(self, batch: ScheduledBatch) -> StepVariant:
        """Find the kinds of rows that the batch has, after `apply`."""
        if not self._numbers:
            return PLAIN
        return StepVariant.of_rows(
            {name: numbers[batch.slots] for name, numbers in self._numbers.items()}
        )

    def _input_ids(self, batch: ScheduledBatch) -> NDArray[np.int64]:
        """Collect the step's input ids [T]; 0 of decodes."""
        decodes = batch.num_decodes
        chunks = zip(
            batch.slots[decodes:].tolist(),
            batch.num_computed_tokens[decodes:].tolist(),
            batch.context_lens[decodes:].tolist(),
            strict=True,
        )
        parts = [self._token_ids[slot, first:end] for slot, first, end in chunks]
        return np.concatenate([np.zeros(decodes, np.int64), *parts], dtype=np.int64)

    def _slot_mapping(
        self, batch: ScheduledBatch, positions: NDArray[np.int64], group: int
    ) -> NDArray[np.int64]:
        index = positions // self._block_size
        first = batch.slots * self._block_tables.shape[1] + group * self._slots.device.max_blocks
        at = np.repeat(first, batch.num_scheduled_tokens)
        blocks = self._block_tables.ravel().take(at + index)
        # block · size + offset, the offset being the rest of the position after `index`.
        return (blocks - index) * self._block_size + positions

    def _used_tables(
        self, slots: Slots, context_lens: NDArray[np.int32], group: int
    ) -> NDArray[np.int32]:
        """Return the slots' block tables of a group as far as the longest of them reaches."""
        first = group * self._slots.device.max_blocks
        used = -(-int(context_lens.max()) // self._block_size)
        return self._block_tables[slots, first : first + used]

    def prompt_targets(self, batch: ScheduledBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Find, for every position that `prompt_scores` names, its index in the step and the token
        that follows it; [n] int64 each."""
        starts = np.cumsum(batch.num_scheduled_tokens) - batch.num_scheduled_tokens
        indices, targets = [], []
        for score in batch.prompt_scores:
            positions = np.arange(score.first, score.first + score.count)
            indices.append(starts[score.row] + positions - batch.num_computed_tokens[score.row])
            targets.append(self._token_ids[batch.slots[score.row], positions + 1])
        both = np.stack([np.concatenate(indices), np.concatenate(targets)]).astype(np.int64)
        on_device = self._to_device(both)
        return on_device[0], on_device[1]

    def next_ids(self, batch: ScheduledBatch) -> torch.Tensor:
        """Collect [T] int64 the token after each of the step's, if the row's prompt has it; 0 for
        decodes and after the prompt's last token."""
        decodes, parts = batch.num_decodes, []
        for row in range(decodes, len(batch.slots)):
            first, end = int(batch.num_computed_tokens[row]), int(batch.context_lens[row])
            found = self._token_ids[batch.slots[row], first + 1 : end + 1]
            parts.append(np.pad(found, (0, end - first - len(found))))
        ids = np.concatenate([np.zeros(decodes, np.int64), *parts], dtype=np.int64)
        return self._to_device(ids)

    def advance(self, inputs: StepInputs) -> None:
        """Move the slots past the step's tokens; the sampled tokens follow separately."""
        computed = inputs.attention[0].context_lens.long()
        self._slots.device.num_computed[inputs.slots] = computed

    def _to_device(self, array: NDArray[np.generic]) -> torch.Tensor:
        return upload(array, self._device)
