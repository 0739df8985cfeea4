"""InputBatch: the runner's persistent batch — a slot per running sequence — and a step's tensors.

Applies what a ScheduledBatch says has changed (new rows, appended blocks), then builds the ragged
inputs of the step from the slots with vector operations. Knows no model. Host arrays are numpy;
the tensors it returns are on the model's device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_engine.batch import NewRow, ScheduledBatch
from atom.model_ops.backends.interface import SamplingTensors
from atom.utils.forward_context import AttentionMetaData


@dataclass(frozen=True, slots=True)
class StepInputs:
    """input_ids, positions: [T] int64; last_tokens: [R'] int64, where in T the rows that sample
    have their last token; sampling: of these rows, None when there are none."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    attention: AttentionMetaData
    last_tokens: torch.Tensor
    sampling: SamplingTensors | None


class InputBatch:
    def __init__(
        self,
        num_slots: int,
        max_model_len: int,
        block_size: int,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._device = device
        self._block_size = block_size
        self._vocab_size = vocab_size
        max_blocks = -(-max_model_len // block_size)
        self._token_ids = np.zeros((num_slots, max_model_len), dtype=np.int32)
        self._block_tables = np.zeros((num_slots, max_blocks), dtype=np.int32)
        self._temperature = np.zeros(num_slots, dtype=np.float32)
        self._top_k = np.zeros(num_slots, dtype=np.int64)
        self._top_p = np.zeros(num_slots, dtype=np.float32)
        self._seed = np.zeros(num_slots, dtype=np.int64)

    def prepare(self, batch: ScheduledBatch) -> StepInputs:
        """Apply the batch's changes and build its inputs."""
        for row in batch.new_rows:
            self._enter(row)
        slots, indices, block_ids = batch.block_appends.T
        self._block_tables[slots, indices] = block_ids
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
        attention = self._attention(batch, starts, slot_mapping)
        input_ids = self._token_ids[token_slots, positions].astype(np.int64)
        return StepInputs(
            input_ids=self._to_device(input_ids),
            positions=self._to_device(positions),
            attention=attention,
            last_tokens=self._to_device(starts[1:][batch.samples].astype(np.int64) - 1),
            sampling=self._sampling(batch),
        )

    def append_tokens(self, batch: ScheduledBatch, token_ids: NDArray[np.int32]) -> None:
        """Take in the sampled tokens: inputs of the next step."""
        slots, at = batch.slots[batch.samples], batch.context_lens[batch.samples]
        inside = at < self._token_ids.shape[1]  # a row at its full length will not run again
        self._token_ids[slots[inside], at[inside]] = token_ids[inside]

    def _enter(self, row: NewRow) -> None:
        slot, params = row.slot, row.params
        self._token_ids[slot, : len(row.token_ids)] = row.token_ids
        self._block_tables[slot, : len(row.block_ids)] = row.block_ids
        self._temperature[slot] = params.temperature
        self._top_k[slot] = params.top_k if params.top_k > 0 else self._vocab_size
        self._top_p[slot] = params.top_p
        self._seed[slot] = row.seed

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
        )

    def _sampling(self, batch: ScheduledBatch) -> SamplingTensors | None:
        slots = batch.slots[batch.samples]
        if len(slots) == 0:
            return None
        temperature, top_k, top_p = self._temperature[slots], self._top_k[slots], self._top_p[slots]
        return SamplingTensors(
            temperature=self._to_device(temperature),
            top_k=self._to_device(top_k),
            top_p=self._to_device(top_p),
            seed=self._to_device(self._seed[slots]),
            position=self._to_device(batch.context_lens[batch.samples].astype(np.int64)),
            all_greedy=not temperature.any(),
            any_top_k=bool((top_k < self._vocab_size).any()),
            any_top_p=bool((top_p < 1.0).any()),
        )

    def _to_device(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)
