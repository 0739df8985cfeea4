"""ModelDrafter: drafts with a layer that predicts on from a model's hidden states.

Behind each step the layer computes the step's tokens too, each with the token behind it, so that
its cache stands where the model's does; what it makes of a row's newest is kept by slot. The first
draft is drawn of that, the others of its own output in the model's place, at positions whose blocks
the step has already; the next step writes them anew. Drafts are drawn with the noise of the draws
that they guess, so that a sampled token is guessed as well as the two distributions agree. Runs
eagerly, behind the model's graphs; the same on every rank.
"""

from __future__ import annotations

import torch

from atom.model_ops.attention.step_plan import plan_captured_step
from atom.model_ops.backends.interface import Ops, SamplingTensors
from atom.model_ops.drafts import Drafts
from atom.model_ops.slots import SlotTensors
from atom.models.draft_model import DraftModel
from atom.speculation.drafter import ComputedTokens
from atom.utils.forward_context import ForwardContext, set_forward_context


class ModelDrafter:
    """hidden_size: of the model's states; block_size: tokens of a block."""

    follows = True

    def __init__(
        self, model: DraftModel, ops: Ops, state: SlotTensors, hidden_size: int, block_size: int
    ) -> None:
        self._model = model
        self._ops = ops
        self._state = state
        self._block_size = block_size
        self._hidden = torch.zeros(
            len(state.last_token), hidden_size, dtype=model.dtype, device=state.last_token.device
        )

    def follow(self, computed: ComputedTokens) -> None:
        any_newest = len(computed.newest) > 0
        looked_at = computed.newest if any_newest else computed.positions.new_zeros(1)
        with set_forward_context(ForwardContext(computed.attention, looked_at)):
            hidden = self._model(
                computed.next_ids, computed.positions, self._model.join(computed.states)
            )
        if any_newest:
            self._hidden[computed.slots] = hidden

    def draft(self, slots: torch.Tensor, wanted: torch.Tensor, num_drafts: int) -> Drafts:
        hidden = self._hidden[slots]
        drawn = [self._draw(slots, hidden, 0)]
        starts = torch.arange(len(slots) + 1, dtype=torch.int32, device=slots.device)
        for ahead in range(num_drafts - 1):
            # A row that wants fewer goes on in its last place, which the step writes anew.
            place = wanted.clamp_max(ahead)
            inputs = self._ops.prepare_drafted(
                slots, place, drawn[-1], self._state, self._block_size
            )
            # On the CPU the longest context is worth knowing; on a device it is not asked for.
            longest = self._state.max_blocks * self._block_size
            if slots.device.type == "cpu":
                longest = int(inputs.context_lens.max())
            attention = plan_captured_step(inputs, starts, longest, even=False)
            with set_forward_context(ForwardContext(attention)):
                hidden = self._model(drawn[-1], inputs.positions, hidden)
            drawn.append(self._draw(slots, hidden, ahead + 1))
        return Drafts(torch.stack(drawn, dim=1), wanted)

    def _draw(self, slots: torch.Tensor, hidden: torch.Tensor, ahead: int) -> torch.Tensor:
        """Draw the draft that has `ahead` others before it."""
        state = self._state
        return self._model.draw(
            hidden,
            SamplingTensors(
                temperature=state.temperature[slots],
                seed=state.seed[slots],
                position=state.num_computed[slots] + 1 + ahead,
            ),
        )
