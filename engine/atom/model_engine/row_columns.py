"""Row columns: every number of a row, each declared once.

A row is a running sequence, as the runner knows it. A field of RowNumbers declares a number: how
it is read from the scheduler's sequence, its default, and the dtype of its entry per slot on the
device. The row that enters (NewRow), the batch builder, the step codec, the columns of the slots,
the token columns of a step and the warm-up's rows derive from it. Torch-free; knows no scheduler
and no runner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, TypeVar, dataclass_transform

import numpy as np

NO_LORA = -1  # the adapter slot of a row without an adapter
NO_SHIFT = 1  # of a row whose rotary positions are those of its tokens; shifts are at most 0

_COLUMN = "column"
_Record = TypeVar("_Record")


class RowSource(Protocol):
    """The numbers that a sequence with a slot has for its row. seed: set at first admission."""

    id: int
    slot: int
    num_prompt_tokens: int
    seed: int | None
    lora_slot: int
    position_delta: int


@dataclass(frozen=True, slots=True)
class RowColumn:
    """A number that every row has. of: reads the number from a sequence; default: for a row without
    this number, None if every row has one; kept: dtype of the column's entries per slot on the
    device, None if the slots have no such column."""

    of: Callable[[RowSource], int]
    default: int | None = None
    kept: type[np.integer[Any]] | None = None

    @property
    def empty(self) -> int:
        """Return the number of a slot without a row."""
        return self.default or 0


def row_column(
    of: Callable[[RowSource], int],
    *,
    default: int | None = None,
    kept: type[np.integer[Any]] | None = None,
) -> Any:
    """Declare a field of RowNumbers; the arguments are those of RowColumn."""
    metadata = {_COLUMN: RowColumn(of, default, kept)}
    return (
        field(metadata=metadata) if default is None else field(default=default, metadata=metadata)
    )


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(row_column,))
def _record(declared: type[_Record]) -> type[_Record]:
    return dataclass(frozen=True, slots=True, kw_only=True)(declared)


def _seed_of(sequence: RowSource) -> int:
    assert sequence.seed is not None, "a sequence has its seed before it enters"
    return sequence.seed


@_record
class RowNumbers:
    """The numbers of a row. seed: of its random draws (given or drawn at arrival); lora_slot: of
    its adapter, NO_LORA without one; position_delta: of the rotary position of the tokens that it
    draws from their position, at most 0, NO_SHIFT without images."""

    slot: int = row_column(lambda sequence: sequence.slot)
    request_id: int = row_column(lambda sequence: sequence.id)
    seed: int = row_column(_seed_of, kept=np.int64)
    num_prompt_tokens: int = row_column(lambda sequence: sequence.num_prompt_tokens)
    lora_slot: int = row_column(lambda sequence: sequence.lora_slot, default=NO_LORA, kept=np.int32)
    position_delta: int = row_column(
        lambda sequence: sequence.position_delta, default=NO_SHIFT, kept=np.int64
    )


ROW_COLUMNS: dict[str, RowColumn] = {
    each.name: each.metadata[_COLUMN] for each in fields(RowNumbers)
}
EMPTY_ROW: dict[str, int] = {name: column.empty for name, column in ROW_COLUMNS.items()}


def row_numbers(sequence: RowSource) -> dict[str, int]:
    """Read all numbers of a sequence's row, by the columns' names."""
    return {name: column.of(sequence) for name, column in ROW_COLUMNS.items()}
