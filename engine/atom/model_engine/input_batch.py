"""InputBatch: the runner's persistent batch — a slot per running sequence — and a step's tensors.

The state of a decode lives on the device: last token, position, block table, temperature and seed
of every slot. A step that only decodes needs nothing from the host but which slots run
and which blocks were appended; the token that one step samples is the input of the next without
visiting the host (deferred output, docs/adr/0002). Prompts come from the host, which keeps their
tokens and a copy of the block tables to build ragged steps with vector operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_engine.batch import NewRow, ScheduledBatch, Slots
from atom.model_ops.backends.interface import SlotTensors
from atom.utils.device import upload, upload_together
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
        """Bring the host up to date with what the batch says has changed; of the device see `enter`
        and `append_blocks`."""
        for row in batch.new_rows:
            self._token_ids[row.slot, : len(row.token_ids)] = row.token_ids
            self._block_tables[row.slot, : len(row.block_ids)] = row.block_ids
        slots, indices, block_ids = batch.block_appends.T
        self._block_tables[slots, indices] = block_ids

    def append_blocks(self, batch: ScheduledBatch) -> None:
        """Write the appended blocks into the device's tables (a graph does this itself)."""
        if len(batch.block_appends):
            slots, indices, block_ids = self._to_device(batch.block_appends.T)
            self.state.block_tables[slots.long(), indices.long()] = block_ids

    def enter(self, rows: tuple[NewRow, ...]) -> None:
        """Tell the device of rows that take a slot, after `apply`: what their sampling needs, and
        steps whose inputs the device itself gathers. A step of `prepare` needs none of it."""
        slots = np.array([row.slot for row in rows], dtype=np.int64)
        # No longer than the longest of them: rows of the table are mostly unused.
        used = max(len(row.block_ids) for row in rows)
        sent = upload_together(
            {
                "slots": slots,
                "tables": self._block_tables[slots, :used],
                "temperatures": np.array([row.params.temperature for row in rows], np.float32),
                "seeds": np.array([row.seed for row in rows], dtype=np.int64),
            },
            self._device,
        )
        at, state = sent["slots"], self.state
        state.block_tables[at, :used] = sent["tables"]
        state.temperature[at] = sent["temperatures"]
        state.seed[at] = sent["seeds"]

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
        slot_mapping = self._slot_mapping(batch, positions)
        samples, context_lens = batch.samples, batch.context_lens
        last_rows = _last_rows(batch)
        arrays: dict[str, NDArray[np.generic]] = {
            "input_ids": self._input_ids(batch),
            "positions": positions,
            "slot_mapping": slot_mapping,
            "slots": batch.slots,
            "sample_slots": batch.slots[samples],
            "sample_positions": context_lens[samples].astype(np.int64),
            "starts": starts,
            "contexts": context_lens,
            "tables": self._used_tables(batch.slots, context_lens),
        }
        if last_rows is not None:
            arrays |= self._last_arrays(batch, last_rows, starts, slot_mapping)
        sent = upload_together(arrays, self._device)
        # Of decodes only the device knows the newest token.
        decodes = batch.num_decodes
        if decodes:
            sent["input_ids"][:decodes] = self.state.last_token[sent["slots"][:decodes]]
        return StepInputs(
            input_ids=sent["input_ids"],
            positions=sent["positions"],
            attention=_attention(batch, sent),
            last_tokens=None if last_rows is None else _last_tokens(context_lens[last_rows], sent),
            slots=sent["slots"],
            sample_slots=sent["sample_slots"],
            sample_positions=sent["sample_positions"],
        )

    def _last_arrays(
        self,
        batch: ScheduledBatch,
        rows: NDArray[np.int64],
        starts: NDArray[np.int32],
        slot_mapping: NDArray[np.int64],
    ) -> dict[str, NDArray[np.generic]]:
        """What LastTokens needs on the device of these rows."""
        tokens = starts[1:][rows].astype(np.int64) - 1
        context_lens = batch.context_lens[rows]
        return {
            "last_tokens": tokens,
            "last_starts": np.arange(len(rows) + 1, dtype=np.int32),
            "last_contexts": context_lens,
            "last_tables": self._used_tables(batch.slots[rows], context_lens),
            "last_mapping": slot_mapping[tokens],
        }

    def _input_ids(self, batch: ScheduledBatch) -> NDArray[np.int64]:
        """[T], of decodes 0."""
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
        self, batch: ScheduledBatch, positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        max_blocks = self._block_tables.shape[1]
        index = positions // self._block_size
        at = np.repeat(batch.slots * max_blocks, batch.num_scheduled_tokens)
        blocks = self._block_tables.ravel().take(at + index)
        # block · size + offset, the offset being what `index` leaves of the position.
        return (blocks - index) * self._block_size + positions

    def _used_tables(self, slots: Slots, context_lens: NDArray[np.int32]) -> NDArray[np.int32]:
        """The slots' block tables as far as the longest of them reaches."""
        return self._block_tables[slots, : -(-int(context_lens.max()) // self._block_size)]

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

    def _to_device(self, array: NDArray[np.generic]) -> torch.Tensor:
        return upload(array, self._device)


def _last_rows(batch: ScheduledBatch) -> NDArray[np.int64] | None:
    """The rows whose last tokens alone are looked at; None when the step has no other tokens."""
    if batch.total_tokens_num == np.count_nonzero(batch.samples):
        return None
    return np.flatnonzero(batch.samples) if batch.samples.any() else np.zeros(1, dtype=np.int64)


def _attention(batch: ScheduledBatch, sent: dict[str, torch.Tensor]) -> AttentionMetaData:
    context_lens = batch.context_lens
    return AttentionMetaData(
        query_starts=sent["starts"],
        context_lens=sent["contexts"],
        block_tables=sent["tables"],
        slot_mapping=sent["slot_mapping"],
        num_decodes=batch.num_decodes,
        max_query_len=int(batch.num_scheduled_tokens.max()),
        max_context_len=int(context_lens.max()),
        even_contexts=are_even(context_lens[: batch.num_decodes]),
        long_prompts=long_prompts(
            batch.num_computed_tokens, batch.num_scheduled_tokens, batch.num_decodes
        ),
    )


def _last_tokens(context_lens: NDArray[np.int32], sent: dict[str, torch.Tensor]) -> LastTokens:
    """context_lens: of the rows that it is about."""
    attention = AttentionMetaData(
        query_starts=sent["last_starts"],
        context_lens=sent["last_contexts"],
        block_tables=sent["last_tables"],
        slot_mapping=sent["last_mapping"],
        num_decodes=len(context_lens),
        max_query_len=1,
        max_context_len=int(context_lens.max()),
        even_contexts=are_even(context_lens),
    )
    return LastTokens(sent["last_tokens"], attention)
