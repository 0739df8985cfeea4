"""CatchUpDecodes: gives a proposer the inputs of a decode step, from the slots alone.

The slots are past the step's tokens by then, so its inputs are rebuilt from them: a draft model
catches up in this way with steps that graphs replay, and the catch-up is captured, too. Owned by
SpeculativeStepRunner.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom.model_ops.attention.step_plan import plan_captured_step
from atom.model_ops.backends.interface import Ops
from atom.model_ops.drafts import DraftLayout
from atom.model_ops.slots import SlotTensors
from atom.models.decoder.hidden_states import HiddenStates
from atom.speculation.proposer import ComputedTokens, Proposer
from atom.utils.forward_context import DecodeRuns


@dataclass(frozen=True, slots=True)
class _TokensBehind:
    """Computed tokens [T]: the slot of each, the distance `back` from the slot's current position
    (negative), and the token that follows it."""

    slots: torch.Tensor
    back: torch.Tensor
    next_ids: torch.Tensor


class CatchUpDecodes:
    def __init__(self, proposer: Proposer, ops: Ops, state: SlotTensors, block_size: int) -> None:
        self._proposer = proposer
        self._ops = ops
        self._state = state
        self._block_size = block_size

    def of_decodes(self, slots: torch.Tensor, states: HiddenStates) -> None:
        """Catch up with a step in which each row got one token."""
        self._proposer.catch_up(self.computed_decodes(slots, states))

    def of_runs(
        self, layout: DraftLayout, drawn: torch.Tensor, counts: torch.Tensor, states: HiddenStates
    ) -> None:
        """Catch up with a verified step: tokens [T], a draw after each, and the number [R] of
        tokens that each row accepted."""
        self._proposer.catch_up(self.computed_runs(layout, drawn, counts, states))

    def computed_decodes(self, slots: torch.Tensor, states: HiddenStates) -> ComputedTokens:
        one_back = torch.full_like(slots, -1)
        newest = torch.arange(len(slots), device=slots.device)
        tokens = _TokensBehind(slots, one_back, self._state.last_token[slots])
        return self._computed(tokens, states, (slots, newest))

    def computed_runs(
        self, layout: DraftLayout, drawn: torch.Tensor, counts: torch.Tensor, states: HiddenStates
    ) -> ComputedTokens:
        back = layout.offset - counts[layout.row]
        newest = (layout.first + counts - 1).clamp_max(len(drawn) - 1)  # of padding rows, any
        tokens = _TokensBehind(layout.token_slots, back, drawn)
        return self._computed(tokens, states, (layout.slots, newest), layout.runs)

    def _computed(
        self,
        tokens: _TokensBehind,
        states: HiddenStates,
        rows: tuple[torch.Tensor, torch.Tensor],
        runs: DecodeRuns | None = None,
    ) -> ComputedTokens:
        """Describe tokens whose hidden states are known, with the newest of each row."""
        slots, next_ids = tokens.slots, tokens.next_ids
        inputs = self._ops.prepare_drafted(
            slots, tokens.back, next_ids, self._state, self._block_size
        )
        starts = torch.arange(len(slots) + 1, dtype=torch.int32, device=slots.device)
        longest = self._state.max_blocks * self._block_size
        attention = plan_captured_step(inputs, starts, longest, runs=runs)
        return ComputedTokens(inputs.positions, next_ids, states, attention, *rows)
