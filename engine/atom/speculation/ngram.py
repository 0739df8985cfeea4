"""N-gram proposer (prompt lookup): propose the tokens that followed an earlier occurrence.

It needs no draft model, only the row's text on the device.
"""

from __future__ import annotations

import torch

from atom.model_ops.backends.interface import Ops
from atom.model_ops.drafts import Drafts, Lookup
from atom.model_ops.slots import SlotTensors
from atom.speculation.proposer import ComputedTokens, Drafting
from atom.speculative_config import SpeculativeConfig


class NgramProposer:
    """Propose the tokens that followed an earlier occurrence of the row's last tokens, in its
    prompt or its answer."""

    catches_up = False

    def __init__(self, ops: Ops, state: SlotTensors, config: SpeculativeConfig) -> None:
        self._ops = ops
        self._state = state
        self._lookup = Lookup(config.fewest_matched, config.most_matched)

    def prepare(self, slots: torch.Tensor, wanted: torch.Tensor, drafts: Drafts) -> Drafting:
        return Drafting(slots, wanted, drafts, ahead=wanted)

    def begin(self, drafting: Drafting) -> None:
        self._ops.draft_ngrams(
            drafting.slots, drafting.wanted, self._state, self._lookup, drafting.drafts
        )

    def extend(self, drafting: Drafting) -> None:
        """Do nothing: `begin` has proposed all the drafts that the lookup found."""

    def catch_up(self, computed: ComputedTokens) -> None:
        """Do nothing: the slots' tokens are the proposer's only state."""
