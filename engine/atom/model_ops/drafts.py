"""Drafts: proposed next tokens of a step's rows, before the model has verified them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from atom.model_ops.slots import SlotTensors
from atom.utils.forward_context import DecodeRuns


@dataclass(frozen=True, slots=True)
class Lookup:
    """The look-up of drafts among a row's own tokens: its last ones, as many as possible from
    `fewest` to `most`, must occur before; the newest of the longest matches is used."""

    fewest: int
    most: int


@dataclass(frozen=True, slots=True)
class Drafts:
    """The drafts of a step's rows: token_ids [R, K] int64, counts [R] int64, the number of drafts;
    the tokens after them are padding from the vocabulary."""

    token_ids: torch.Tensor
    counts: torch.Tensor

    def first(self, rows: int) -> Drafts:
        """Return the drafts of the first rows, as views of the same memory."""
        return Drafts(self.token_ids[:rows], self.counts[:rows])


def no_drafts(rows: int, most: int, device: torch.device) -> Drafts:
    """Allocate up to `most` drafts for each row, with counts of 0."""
    counts = torch.zeros(rows, dtype=torch.int64, device=device)
    return Drafts(counts.new_zeros((rows, most)), counts)


@dataclass(frozen=True, slots=True)
class DraftLayout:
    """The order of a step's tokens whose R rows carry drafts: row after row the newest token and
    its drafts. Of rows: slots, wanted (the number of its drafts) and first (the index of its newest
    token), [R] int64. Of tokens: token_slots, row and offset (the token's index in its row; 0 for
    the newest token), [T] int64. Padding names the padding slot, in rows and in tokens. runs: each
    row's tokens, as decodes that follow each other; empty for padding."""

    slots: torch.Tensor
    wanted: torch.Tensor
    first: torch.Tensor
    token_slots: torch.Tensor
    row: torch.Tensor
    offset: torch.Tensor
    runs: DecodeRuns = field(kw_only=True)

    def of(self, rows: int, tokens: int) -> DraftLayout:
        """Take the layout of the first rows and tokens, in the same memory."""
        return DraftLayout(
            self.slots[:rows], self.wanted[:rows], self.first[:rows],
            self.token_slots[:tokens], self.row[:tokens], self.offset[:tokens],
            runs=DecodeRuns(self.runs.starts[: rows + 1], self.runs.longest),
        )  # fmt: skip

    def drafted(self, drafts: Drafts) -> torch.Tensor:
        """Return each token's draft [T]; an arbitrary one for a row's newest token."""
        if not drafts.token_ids.shape[1]:
            return torch.zeros_like(self.row)
        return drafts.token_ids[self.row, (self.offset - 1).clamp_min(0)]


@dataclass(frozen=True, slots=True)
class DrawnRuns:
    """The tokens that a step drew for R rows: slots [R] int64; token_ids [T] int64, row after row;
    first [R] int64, the index of a row's first draw. A row has one draw after its newest token and
    one after each draft."""

    slots: torch.Tensor
    first: torch.Tensor
    token_ids: torch.Tensor


def keep_newest(slots: torch.Tensor, state: SlotTensors) -> None:
    """Append each slot's newest token [R] to its tokens, after a step that gave one to each."""
    assert state.tokens is not None, "slots keep their tokens where drafts are looked up"
    if slots.device.type == "cpu":  # numpy does the same in a third of the time
        rows = slots.numpy()
        state.tokens.numpy()[rows, state.num_computed.numpy()[rows]] = state.last_token.numpy()[
            rows
        ]
        return
    newest = state.last_token[slots].to(state.tokens.dtype)
    state.tokens[slots, state.num_computed[slots]] = newest
