"""Drafter: who guesses what a step's rows get next. Guesses are verified; they decide no token.

Drafts are made on the device of what it knows itself, so that the host need not have seen a row's
newest tokens. Called by the runner before the layers of a step, and told behind them what the step
computed; what a drafter keeps of each slot is its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from atom.model_ops.backends.interface import Ops
from atom.model_ops.drafts import Drafts, Lookup
from atom.model_ops.slots import SlotTensors
from atom.models.hidden_states import HiddenStates
from atom.speculative_config import SpeculativeConfig
from atom.utils.forward_context import AttentionMetaData


@dataclass(frozen=True, slots=True)
class ComputedTokens:
    """What a step computed, and what came of it. Of its T tokens: positions and next_ids (the token
    behind each, as far as it is known by now) [T] int64, states of all, attention by group of
    layers. Of the rows that got tokens: slots [S] int64, and newest [S] int64, the index of the
    last token that holds; both empty where none did."""

    positions: torch.Tensor
    next_ids: torch.Tensor
    states: HiddenStates
    attention: tuple[AttentionMetaData, ...]
    slots: torch.Tensor
    newest: torch.Tensor


class Drafter(Protocol):
    follows: bool  # whether `follow` is to be called, which takes the states of all tokens

    def draft(self, slots: torch.Tensor, wanted: torch.Tensor, num_drafts: int) -> Drafts:
        """Draft up to `wanted` tokens [R] int64, at most num_drafts, behind the newest one of each
        slot [R] int64; blocks are there for so many."""

    def follow(self, computed: ComputedTokens) -> None:
        """Take in what a step computed, before the next one drafts."""


class NgramDrafter:
    """Drafts what followed when the row's last tokens occurred before, in its prompt or answer."""

    follows = False

    def __init__(self, ops: Ops, state: SlotTensors, config: SpeculativeConfig) -> None:
        self._ops = ops
        self._state = state
        self._config = config

    def draft(self, slots: torch.Tensor, wanted: torch.Tensor, num_drafts: int) -> Drafts:
        config = self._config
        lookup = Lookup(config.fewest_matched, config.most_matched, num_drafts)
        found = self._ops.draft_ngrams(slots, self._state, lookup)
        return Drafts(found.token_ids, torch.minimum(found.counts, wanted))

    def follow(self, computed: ComputedTokens) -> None:
        """The slots' tokens are all that it needs."""
