"""DraftOps: the contract of the operations that only steps with drafts ask for.

Part of `Ops` (interface.py), whose rules hold here too. R: rows of a step, K: most drafts of one.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Protocol

import torch

from atom.model_ops.backends.op_names import DRAFT_OPS
from atom.model_ops.backends.pinned_ring import PinnedRing
from atom.model_ops.drafts import DraftLayout, Drafts, DrawnRuns, Lookup
from atom.model_ops.slots import DecodeInputs, SlotTensors


class DraftOps(Protocol):
    def draft_ngrams(
        self, slots: torch.Tensor, wanted: torch.Tensor, state: SlotTensors, lookup: Lookup,
        drafts: Drafts,
    ) -> None:  # fmt: skip
        """Fill `drafts` [R, K] with what followed in the rows' own tokens when their last ones
        occurred before: as many as `wanted` [R] int64, none of a row without a match. slots [R]
        int64. A draft longer than what followed goes on with itself, so that a period is
        continued."""

    def lay_out_drafts(self, layout: DraftLayout, state: SlotTensors) -> None:
        """Fill the layout's first, token_slots, row, offset and the starts of its runs from its
        slots and wanted. Padding rows are behind the others and have no tokens; their first is that
        of any token."""

    def prepare_drafted(
        self,
        slots: torch.Tensor,
        offsets: torch.Tensor,
        token_ids: torch.Tensor,
        state: SlotTensors,
        block_size: int,
    ) -> DecodeInputs:
        """Compute `prepare_decode` of rows that stand `offsets` tokens further than their slots: a
        slot's newest token is followed by its drafts, a row each. slots, offsets, token_ids [N]
        int64; at offset 0 the slot's newest token is meant, whatever token_ids says. Each position
        has a block."""

    def accept_drafts(
        self, drawn: DrawnRuns, drafts: Drafts, state: SlotTensors, ring: PinnedRing | None = None
    ) -> torch.Tensor:
        """Return how many of the tokens drawn behind a slot's newest token and its drafts the row
        gets: counts [R] int64, one, and one more for every draft that is the token drawn in its
        place, up to the first that is not. Writes them behind the slots' tokens, the last becomes
        last_token, and num_computed grows by the count. With `ring` all draws, the counts and how
        many drafts each row had are the answer to the entry received last. Padding rows change no
        real slot, and any counts are said of them."""


def draft_ops_of(module: ModuleType) -> dict[str, Any]:
    """Return the module's functions of these operations by their names; it has all of them."""
    return {op: getattr(module, op) for op in DRAFT_OPS}
