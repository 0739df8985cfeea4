"""InputBatch: the runner's persistent batch — a slot per running sequence — and a step's tensors.

The state of a decode lives on the device: last token, position, block table, temperature and seed
of every slot. A step that only decodes needs nothing from the host but which slots run
and which blocks were appended; the token that one step samples is the input of the next without
visiting the host (deferred output, guide seeds/000). Prompts come from the host, which keeps their
tokens and a copy of the block tables to build ragged steps with vector operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_engine.batch import NewRow, ScheduledBatch
from atom.model_ops.backends.interface import SlotTensors
from atom.utils.device import upload
from atom.utils.forward_context import AttentionMetaData, LastTokens
from atom.utils.row_groups import are_even, long_prompts


@dataclass(frozen=True, slots=True)
class StepInputs:
    """input_ids, positions: [T] int64; last_tokens: of the rows that sample (of the first row when
    none does), None when they are all the step's tokens; sample_slots: [R'] int64, their slots;
    sample_positions: [R'] int64, of the tokens that they draw; slots: [R] int64 of all rows."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    attention: AttentionMetaData
    slots: torch.Tensor
    last_tokens: LastTokens | None
    sample_slots: torch.Tensor
    sample_positions: torch.Tensor


def zero_slots(num_slots: int, max_blocks: int, device: torch.device) -> SlotTensors:
    """One slot more than asked for, at the end: padding rows of a graph read and write it."""

    def column(dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(num_slots + 1, dtype=dtype, device=device)

    return SlotTensors(
        last_token=column(torch.int64),
        num_computed=column(torch.int64),
        block_tables=torch.zeros((num_slots + 1, max_blocks), dtype=torch.int32, device=device),
        temperature=column(torch.float32),
        seed=column(torch.int64),
    )


class InputBatch:
    def __init__(
        self,
        num_slots: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
    ) -> None:
        self._device = device
        self._block_size = block_size
        max_blocks = -(-max_model_len // block_size)
        self.state = zero_slots(num_slots, max_blocks, device)
        self._token_ids = np.zeros((num_slots, max_model_len), dtype=np.int32)  # of prompts
        self._block_tables = np.zeros((num_slots, max_blocks), dtype=np.int32)

    # ---- changes ------------------------------------------------------------------------------

    def apply(self, batch: ScheduledBatch) -> None:
        """Bring host and device up to date with what the batch says has changed, except the
        appended blocks on the device: see `append_blocks`."""
        if batch.new_rows:
            self._enter(batch.new_rows)
        slots, indices, block_ids = batch.block_appends.T
        self._block_tables[slots, indices] = block_ids

    def append_blocks(self, batch: ScheduledBatch) -> None:
        """Write the appended blocks into the device's tables (a graph does this itself)."""
        if len(batch.block_appends):
            slots, indices, block_ids = self._to_device(batch.block_appends.T)
            self.state.block_tables[slots.long(), indices.long()] = block_ids

    def _enter(self, rows: tuple[NewRow, ...]) -> None:
        for row in rows:
            self._token_ids[row.slot, : len(row.token_ids)] = row.token_ids
            self._block_tables[row.slot, : len(row.block_ids)] = row.block_ids
        slots = np.array([row.slot for row in rows], dtype=np.int64)
        at = self._to_device(slots)
        state = self.state
        # No longer than the longest of them: rows of the table are mostly unused.
        used = max(len(row.block_ids) for row in rows)
        state.block_tables[at, :used] = self._to_device(self._block_tables[slots, :used])
        temperatures = np.array([row.params.temperature for row in rows], dtype=np.float32)
        state.temperature[at] = self._to_device(temperatures)
        state.seed[at] = self._to_device(np.array([row.seed for row in rows], dtype=np.int64))

    # ---- a ragged step ------------------------------------------------------------------------

    def prepare(self, batch: ScheduledBatch) -> StepInputs:
        """The step's inputs, after `apply` and `append_blocks`."""
        counts = batch.num_scheduled_tokens
        starts = np.zeros(len(counts) + 1, dtype=np.int32)
        np.cumsum(counts, out=starts[1:])
        # Position of every token: its index in the step, moved from the row's start to where the
        # row stands.
        positions = np.arange(starts[-1], dtype=np.int64)
        positions += np.repeat(batch.num_computed_tokens - starts[:-1], counts)
        token_slots = np.repeat(batch.slots, counts)
        blocks = self._block_tables[token_slots, positions // self._block_size]
        slot_mapping = blocks.astype(np.int64) * self._block_size + positions % self._block_size
        slots = self._to_device(batch.slots.astype(np.int64))
        # Of decodes only the device knows the newest token; of prompts the host does.
        input_ids = self._to_device(self._token_ids[token_slots, positions].astype(np.int64))
        decodes = batch.num_decodes
        input_ids[:decodes] = self.state.last_token[slots[:decodes]]
        samples = batch.samples
        sample_positions = batch.context_lens[samples].astype(np.int64)
        return StepInputs(
            input_ids=input_ids,
            positions=self._to_device(positions),
            attention=self._attention(batch, starts, slot_mapping),
            last_tokens=self._last_tokens(batch, starts, slot_mapping),
            slots=slots,
            sample_slots=self._to_device(batch.slots[samples].astype(np.int64)),
            sample_positions=self._to_device(sample_positions),
        )

    def prompt_targets(self, batch: ScheduledBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """For every position that `prompt_scores` names: its index in the step, and the token that
        follows it; [n] int64 each."""
        starts = np.cumsum(batch.num_scheduled_tokens) - batch.num_scheduled_tokens
        indices, targets = [], []
        for score in batch.prompt_scores:
            positions = np.arange(score.first, score.first + score.count)
            indices.append(starts[score.row] + positions - batch.num_computed_tokens[score.row])
            targets.append(self._token_ids[batch.slots[score.row], positions + 1])
        both = np.stack([np.concatenate(indices), np.concatenate(targets)]).astype(np.int64)
        on_device = self._to_device(both)
        return on_device[0], on_device[1]

    def advance(self, inputs: StepInputs) -> None:
        """Move the slots past what the step computed; the tokens it samples follow on their own."""
        self.state.num_computed[inputs.slots] = inputs.attention.context_lens.long()

    def _attention(
        self, batch: ScheduledBatch, starts: NDArray[np.int32], slot_mapping: NDArray[np.int64]
    ) -> AttentionMetaData:
        context_lens = batch.context_lens
        longest = int(context_lens.max())
        used_blocks = -(-longest // self._block_size)
        return AttentionMetaData(
            query_starts=self._to_device(starts),
            context_lens=self._to_device(context_lens),
            block_tables=self._to_device(self._block_tables[batch.slots, :used_blocks]),
            slot_mapping=self._to_device(slot_mapping),
            num_decodes=batch.num_decodes,
            max_query_len=int(batch.num_scheduled_tokens.max()),
            max_context_len=longest,
            even_contexts=are_even(context_lens[: batch.num_decodes]),
            long_prompts=long_prompts(
                batch.num_computed_tokens, batch.num_scheduled_tokens, batch.num_decodes
            ),
        )

    def _last_tokens(
        self, batch: ScheduledBatch, starts: NDArray[np.int32], slot_mapping: NDArray[np.int64]
    ) -> LastTokens | None:
        if len(slot_mapping) == np.count_nonzero(batch.samples):
            return None
        rows = np.flatnonzero(batch.samples) if batch.samples.any() else np.zeros(1, dtype=np.int64)
        tokens = starts[1:][rows].astype(np.int64) - 1
        context_lens = batch.context_lens[rows]
        longest = int(context_lens.max())
        used_blocks = -(-longest // self._block_size)
        attention = AttentionMetaData(
            query_starts=self._to_device(np.arange(len(rows) + 1, dtype=np.int32)),
            context_lens=self._to_device(context_lens),
            block_tables=self._to_device(self._block_tables[batch.slots[rows], :used_blocks]),
            slot_mapping=self._to_device(slot_mapping[tokens]),
            num_decodes=len(rows),
            max_query_len=1,
            max_context_len=longest,
            even_contexts=are_even(context_lens),
        )
        return LastTokens(self._to_device(tokens), attention)

    def _to_device(self, array: NDArray[np.generic]) -> torch.Tensor:
        return upload(array, self._device)
