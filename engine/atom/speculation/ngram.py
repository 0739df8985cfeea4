"""N-gram proposer (prompt lookup): what followed when a row's last tokens occurred before.

No model of its own: the text of a row, on the device, is all that it needs.
"""

from __future__ import annotations

import torch

from atom.model_ops.backends.interface import Ops
from atom.model_ops.drafts import Drafts, Lookup
from atom.model_ops.slots import SlotTensors
from atom.speculation.proposer import ComputedTokens, Drafting
from atom.speculative_config import SpeculativeConfig


class NgramProposer:
    """Proposes what followed when the row's last tokens occurred before, in prompt or answer."""

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
        """There are as many as can be found."""

    def catch_up(self, computed: ComputedTokens) -> None:
        """The slots' tokens are all that it needs."""
