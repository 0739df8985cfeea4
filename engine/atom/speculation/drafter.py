"""Drafter: who guesses what a step's rows get next. Guesses are verified; they decide no token.

Drafts are made on the device of what it knows itself, so that the host need not have seen a row's
newest tokens. Called by the runner before the layers of a step; what a drafter keeps of each slot
is its own.
"""

from __future__ import annotations

from typing import Protocol

import torch

from atom.model_ops.backends.interface import Ops
from atom.model_ops.drafts import Drafts, Lookup
from atom.model_ops.slots import SlotTensors
from atom.speculative_config import SpeculativeConfig


class Drafter(Protocol):
    def draft(self, slots: torch.Tensor, num_drafts: int) -> Drafts:
        """Draft up to num_drafts tokens behind the newest one of each slot [R] int64."""


class NgramDrafter:
    """Drafts what followed when the row's last tokens occurred before, in its prompt or answer."""

    def __init__(self, ops: Ops, state: SlotTensors, config: SpeculativeConfig) -> None:
        self._ops = ops
        self._state = state
        self._config = config

    def draft(self, slots: torch.Tensor, num_drafts: int) -> Drafts:
        config = self._config
        lookup = Lookup(config.fewest_matched, config.most_matched, num_drafts)
        return self._ops.draft_ngrams(slots, self._state, lookup)


def build_drafter(config: SpeculativeConfig, ops: Ops, state: SlotTensors) -> Drafter:
    """The drafter of the method that was asked for."""
    assert config.method == "ngram", "other methods are refused with the options"
    return NgramDrafter(ops, state, config)
