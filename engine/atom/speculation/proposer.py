"""Proposer: guess the next tokens of a step's rows. The model verifies each guess.

Drafts are computed on the device from its own data, so the host need not have seen a row's newest
tokens. The runner calls a proposer before the layers of a step, eagerly or during graph capture,
and reports the step's results afterwards. A proposer owns its state of each slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from atom.model_ops.drafts import Drafts, no_drafts
from atom.models.decoder.hidden_states import HiddenStates
from atom.utils.forward_context import AttentionMetaData


@dataclass(frozen=True, slots=True)
class ComputedTokens:
    """The results of a step. Of its T tokens: positions and next_ids (the token after each, as far
    as it is known by now) [T] int64, states of all, attention by group of layers. Of the S rows
    that got tokens: slots [S] int64, and newest [S] int64, the index of the last accepted token;
    both are empty if no row got tokens."""

    positions: torch.Tensor
    next_ids: torch.Tensor
    states: HiddenStates
    attention: tuple[AttentionMetaData, ...]
    slots: torch.Tensor
    newest: torch.Tensor


@dataclass(frozen=True, slots=True)
class Drafting:
    """Drafts in progress after the newest tokens of R rows: slots and wanted, the number of drafts
    of each, [R] int64; drafts [R, K], which are filled. For drafts that are made one after the
    other: ahead [1] int64, the number of drafts before the newest, and hidden [R, H], the states
    from which it was made, or None if all are made at once."""

    slots: torch.Tensor
    wanted: torch.Tensor
    drafts: Drafts
    ahead: torch.Tensor
    hidden: torch.Tensor | None = None

    def first(self, rows: int) -> Drafting:
        """Take that of the first rows, in the same memory."""
        hidden = None if self.hidden is None else self.hidden[:rows]
        return Drafting(
            self.slots[:rows], self.wanted[:rows], self.drafts.first(rows), self.ahead, hidden
        )


class Proposer(Protocol):
    catches_up: bool  # makes drafts one after the other, and gets every step's results (`catch_up`)

    def prepare(self, slots: torch.Tensor, wanted: torch.Tensor, drafts: Drafts) -> Drafting:
        """Allocate drafts for these rows; there are blocks for the wanted ones."""

    def begin(self, drafting: Drafting) -> None:
        """Make all drafts, or the first of each row."""

    def extend(self, drafting: Drafting) -> None:
        """Make one more draft for each row. A row that wants fewer overwrites its last place."""

    def catch_up(self, computed: ComputedTokens) -> None:
        """Update the proposer's state with the results of a step, before the next step drafts."""


def make_drafts(
    proposer: Proposer, slots: torch.Tensor, wanted: torch.Tensor, num_drafts: int
) -> Drafts:
    """Draft up to `wanted` tokens [R] int64, at most num_drafts, after the newest one of each slot
    [R] int64."""
    drafting = proposer.prepare(slots, wanted, no_drafts(len(slots), num_drafts, slots.device))
    proposer.begin(drafting)
    if proposer.catches_up:
        for _ in range(num_drafts - 1):
            proposer.extend(drafting)
    return drafting.drafts
