"""ContinuationProposer: propose the tokens that the host foretold, if they continue the row.

The host foretells what follows the tokens that it knows. It may be a step behind: the device then
compares the first foretold tokens with those that the row got meanwhile, and proposes the rest, or
nothing if they differ. Plain tensor operations on fixed memory, so that a graph can capture them.
All ranks receive the same batch, and so propose the same drafts.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_engine.batch import NO_TOKEN, Continuations
from atom.model_ops.drafts import Drafts
from atom.model_ops.slots import SlotTensors
from atom.speculation.proposer import ComputedTokens, Drafting
from atom.utils.device import upload_together


class ContinuationProposer:
    """Proposes up to `most_drafts` tokens of a row."""

    catches_up = False

    def __init__(self, state: SlotTensors, most_drafts: int) -> None:
        self._state = state
        slots, device = len(state.last_token), state.last_token.device
        # A step on its way may give a token and all its drafts; as many drafts follow.
        width = 1 + 2 * most_drafts
        self._foretold = torch.full((slots, width), NO_TOKEN, dtype=torch.int64, device=device)
        self._known = torch.zeros(slots, dtype=torch.int64, device=device)
        self._ahead = torch.arange(width, device=device)

    def foretell(self, continuations: Continuations) -> None:
        """Take the host's continuations for the next step."""
        token_ids = continuations.token_ids
        arrays: dict[str, NDArray[np.integer]] = {
            "slots": continuations.slots,
            "known": continuations.known,
            "tokens": token_ids,
        }
        sent = upload_together(arrays, self._known.device)
        slots = sent["slots"].long()
        self._known[slots] = sent["known"].long()
        rows = self._foretold.new_full((len(slots), self._foretold.shape[1]), NO_TOKEN)
        rows[:, : token_ids.shape[1]] = sent["tokens"]
        self._foretold[slots] = rows

    def prepare(self, slots: torch.Tensor, wanted: torch.Tensor, drafts: Drafts) -> Drafting:
        return Drafting(slots, wanted, drafts, ahead=wanted)

    def begin(self, drafting: Drafting) -> None:
        state, slots, ahead = self._state, drafting.slots, self._ahead
        assert state.tokens is not None, "slots keep their tokens where drafts are compared"
        foretold, known = self._foretold[slots], self._known[slots].unsqueeze(1)
        drawn = state.num_computed[slots].unsqueeze(1) + 1 - known  # tokens that the host lacks
        at = (known + ahead).clamp_max(state.tokens.shape[1] - 1)
        agrees = (state.tokens[slots.unsqueeze(1), at] == foretold) | (ahead >= drawn)
        holds = agrees.all(dim=1) & (drawn >= 0).squeeze(1)
        left = (foretold != NO_TOKEN).sum(dim=1) - drawn.squeeze(1)
        counts = torch.minimum(drafting.wanted, left.clamp_min(0))
        drafting.drafts.counts.copy_(torch.where(holds, counts, 0))
        behind = drawn + ahead[: drafting.drafts.token_ids.shape[1]]
        behind = behind.clamp(0, len(ahead) - 1)
        drafting.drafts.token_ids.copy_(foretold.gather(1, behind).clamp_min(0))

    def extend(self, drafting: Drafting) -> None:
        """Do nothing: `begin` has proposed all the drafts."""

    def catch_up(self, computed: ComputedTokens) -> None:
        """Do nothing: the slots' tokens are all that foretold ones are compared with."""
