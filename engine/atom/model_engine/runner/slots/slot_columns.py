"""The columns of each slot's sampling state, declared once: one column per line.

A column has an entry per slot on the host, for looking up the rows' needs, and, if graphs and
kernels read it, one on the device. Rows that take a slot bring their values (`enter`): one copy to
the device for any number of columns. Owned by StepRunner; knows no batch and no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_engine.batch import NewRow
from atom.model_engine.row_columns import ROW_COLUMNS
from atom.model_engine.runner.step_variant import PLAIN, StepVariant
from atom.model_ops.slots import SlotSampling, SlotTensors
from atom.utils.device import upload_together

NO_LOGPROBS = -1


@dataclass(frozen=True, slots=True)
class SlotColumn:
    """Declare one column of the slots' state. name: of SlotTensors' field if on_device; empty: the
    value of a slot without a row; value: the value for a new row."""

    name: str
    dtype: type[np.generic]
    empty: float
    value: Callable[[NewRow], float]
    on_device: bool = True


def slot_columns(vocab_size: int, served: StepVariant) -> tuple[SlotColumn, ...]:
    """List every column; a row without a top-k keeps the whole vocabulary. served: the kinds of
    rows that there may be."""
    return (
        *(
            SlotColumn(name, column.kept, column.empty, attrgetter(name))
            for name, column in ROW_COLUMNS.items()
            if column.kept is not None and served.has(name)
        ),
        SlotColumn("temperature", np.float32, 0.0, lambda row: row.params.temperature),
        SlotColumn(
            "top_k",
            np.int64,
            vocab_size,
            lambda row: row.params.top_k if row.params.top_k > 0 else vocab_size,
        ),
        SlotColumn("top_p", np.float32, 1.0, lambda row: row.params.top_p),
        SlotColumn("min_p", np.float32, 0.0, lambda row: row.params.min_p),
        SlotColumn("repetition", np.float32, 1.0, lambda row: row.params.repetition_penalty, False),
        SlotColumn("presence", np.float32, 0.0, lambda row: row.params.presence_penalty, False),
        SlotColumn("frequency", np.float32, 0.0, lambda row: row.params.frequency_penalty, False),
        SlotColumn("num_logprobs", np.int32, NO_LOGPROBS, _num_logprobs, False),
    )


def _num_logprobs(row: NewRow) -> int:
    wanted = row.params.logprobs
    return NO_LOGPROBS if wanted is None else wanted


@dataclass(frozen=True, slots=True)
class TableSize:
    """Block tables of a slot: groups of layers, and blocks of a sequence in each. kept_tokens: of a
    sequence that the device keeps, for drafts."""

    num_groups: int
    max_blocks: int
    kept_tokens: int = 0


class SlotState:
    """The slots' state, on the host and on the device. host: by column's name, [slots]; device:
    with one slot more, at the end, for a graph's padding rows to read and write."""

    def __init__(
        self,
        num_slots: int,
        vocab_size: int,
        tables: TableSize,
        device: torch.device,
        served: StepVariant = PLAIN,
    ) -> None:
        self._torch_device = device
        self.served = served
        self._columns = slot_columns(vocab_size, served)
        self.host: dict[str, NDArray[Any]] = {
            column.name: np.full(num_slots, column.empty, dtype=column.dtype)
            for column in self._columns
        }
        count, width = num_slots + 1, tables.num_groups * tables.max_blocks

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        on_device = {
            column.name: torch.from_numpy(np.full(count, column.empty, column.dtype)).to(device)
            for column in self._columns
            if column.on_device
        }
        sampling = SlotSampling(*(on_device.pop(each.name) for each in fields(SlotSampling)))
        self.device = SlotTensors(
            last_token=zeros(count),
            num_computed=zeros(count),
            block_tables=zeros(count, width, dtype=torch.int32),
            sampling=sampling,
            num_groups=tables.num_groups,
            tokens=(
                zeros(count, tables.kept_tokens, dtype=torch.int32) if tables.kept_tokens else None
            ),
            state_tokens=zeros(count) if tables.kept_tokens else None,
            **on_device,
        )

    def enter(
        self,
        rows: Sequence[NewRow],
        block_tables: NDArray[np.int32],
        used_columns: NDArray[np.intp],
    ) -> None:
        """Take the values of rows that take a slot, and their block tables' used columns [rows,
        used] of the flat table."""
        slots = np.array([row.slot for row in rows], dtype=np.int64)
        sent: dict[str, NDArray[np.generic]] = {"slots": slots, "tables": block_tables}
        for column in self._columns:
            values = np.array([column.value(row) for row in rows], dtype=column.dtype)
            self.host[column.name][slots] = values
            if column.on_device:
                sent[column.name] = values
        sent["table_columns"] = used_columns.astype(np.int64)
        kept = self.device.tokens
        if kept is not None:
            sent["tokens"] = _side_by_side(rows)
        received = upload_together(sent, self._torch_device)
        at = received.pop("slots")
        tables, columns = received.pop("tables"), received.pop("table_columns")
        self.device.block_tables[at[:, None], columns] = tables
        if kept is not None:
            tokens = received.pop("tokens")
            kept[at, : tokens.shape[1]] = tokens
        for name, values_on_device in received.items():
            self.device.column(name)[at] = values_on_device


def _side_by_side(rows: Sequence[NewRow]) -> NDArray[np.int32]:
    """Return the rows' tokens, [rows, tokens of the longest]."""
    tokens = np.zeros((len(rows), max(len(row.token_ids) for row in rows)), dtype=np.int32)
    for index, row in enumerate(rows):
        tokens[index, : len(row.token_ids)] = row.token_ids
    return tokens
