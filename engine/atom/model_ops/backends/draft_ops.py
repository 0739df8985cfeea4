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
        """Fill `drafts` [R, K] with the tokens that followed an earlier occurrence of the rows'
        last tokens: up to `wanted` [R] int64, none for a row without a match. slots [R] int64. A
        draft longer than the tokens that followed continues with itself, so that a period is
        repeated."""

    def lay_out_drafts(self, layout: DraftLayout, state: SlotTensors) -> None:
        """Fill the layout's first, token_slots, row, offset and the starts of its runs from its
        slots and wanted. Padding rows come after the others and have no tokens; their first is any
        token's index."""

    def prepare_drafted(
        self,
        slots: torch.Tensor,
        offsets: torch.Tensor,
        token_ids: torch.Tensor,
        state: SlotTensors,
        block_size: int,
    ) -> DecodeInputs:
        """Compute `prepare_decode` of rows that are `offsets` tokens beyond their slots: a slot's
        newest token is followed by its drafts, a row each. slots, offsets, token_ids [N] int64;
        offset 0 means the slot's newest token, whatever token_ids has. Each position has a
        block."""

    def accept_drafts(
        self, drawn: DrawnRuns, drafts: Drafts, state: SlotTensors, ring: PinnedRing | None = None
    ) -> torch.Tensor:
        """Return the number of tokens that each row gets of those drawn after its slot's newest
        token and its drafts: counts [R] int64, one, and one more for every draft that equals the
        token drawn in its place, up to the first that differs. Append these tokens to the slots'
        tokens; the last becomes last_token, and num_computed grows by the count. With `ring`,
        answer the entry received last with all draws, the counts, and the number of drafts of each
        row. Padding rows change no real slot, and have arbitrary counts."""


def draft_ops_of(module: ModuleType) -> dict[str, Any]:
    """Return the module's functions of these operations by their names; it has all of them."""
    return {op: getattr(module, op) for op in DRAFT_OPS}
