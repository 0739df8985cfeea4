"""StepVariant: the kinds of rows that change how layers compute a step.

A captured graph is found by its variant, and an eager step is placed by the same value. A further
kind of rows (images, keys and values of another engine) is one field here, with the row column
that tells such rows from plain ones. The runner and its graphs pass the value on and never read
the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any

import torch
from numpy.typing import NDArray

from atom.config import Config
from atom.model_engine.row_columns import ROW_COLUMNS
from atom.model_ops.backends import ResolvedOps
from atom.utils.forward_context import (
    AttentionMetaData,
    ForwardContext,
    ImageTokens,
    LoraTokens,
    RopeShifts,
)

_COLUMN = "column"


@dataclass(frozen=True, slots=True)
class StepVariant:
    """Identify the kinds of rows that a step may have besides plain ones. lora: rows with an
    adapter; shifts: rows whose rotary positions follow those of images."""

    lora: bool = field(default=False, metadata={_COLUMN: "lora_slot"})
    shifts: bool = field(default=False, metadata={_COLUMN: "position_delta"})

    @classmethod
    def served_by(cls, config: Config) -> StepVariant:
        """Return the widest variant that an engine of this configuration serves."""
        vision = config.model.facts.vision
        shifts = vision is not None and vision.has_axes
        return cls(lora=config.lora is not None, shifts=shifts)

    @classmethod
    def captured_by(cls, resolved: ResolvedOps, config: Config) -> StepVariant:
        """Return the widest variant that an engine of this configuration serves, and whose steps
        these operations can run in a captured graph."""
        return replace(cls.served_by(config), lora=resolved.captures_lora)

    @classmethod
    def of_rows(cls, numbers: Mapping[str, NDArray[Any]]) -> StepVariant:
        """Find the variant of rows by their numbers [R] in each column that is served: a row is of
        a kind if its number is not the column's default."""
        kinds = {}
        for kind, column in COLUMN_OF.items():
            if column in numbers:
                kinds[kind] = bool((numbers[column] != ROW_COLUMNS[column].default).any())
        return cls(**kinds)

    @property
    def columns(self) -> tuple[str, ...]:
        """List the row columns that layers read of these kinds of rows."""
        return tuple(column for kind, column in COLUMN_OF.items() if getattr(self, kind))

    def has(self, column: str) -> bool:
        """Return whether rows have a number in the column: plain rows have one in every column that
        does not distinguish kinds."""
        return column not in COLUMN_OF.values() or column in self.columns

    def narrower(self) -> tuple[StepVariant, ...]:
        """List the variants with some or all of these kinds of rows, plain rows first."""
        choices = [(False, True) if getattr(self, kind) else (False,) for kind in COLUMN_OF]
        return tuple(StepVariant(*chosen) for chosen in product(*choices))


# By kind of rows, the column whose number of such a row is not the default.
COLUMN_OF: dict[str, str] = {each.name: each.metadata[_COLUMN] for each in fields(StepVariant)}
PLAIN = StepVariant()


def forward_context(
    attention: tuple[AttentionMetaData, ...],
    logits_indices: torch.Tensor | None,
    of_tokens: Mapping[str, torch.Tensor],
    images: ImageTokens | None = None,
) -> ForwardContext:
    """Build the layers' context of a step. of_tokens: by row column the numbers [T] of the tokens'
    rows, of each column that the step's variant has; of position_delta also [3, T], if a row's
    prompt has images. images: the tokens that these fill."""
    slots, deltas = of_tokens.get("lora_slot"), of_tokens.get("position_delta")
    return ForwardContext(
        attention,
        logits_indices,
        lora=None if slots is None else LoraTokens(slots),
        images=images,
        shifts=None if deltas is None else RopeShifts(deltas.clamp(max=0)),
    )
