"""DraftModelProposer: draft with a layer that predicts further tokens from a model's hidden states,
or with a whole model.

After each step the layer also computes the step's tokens, each with the token after it, so its
cache covers the same tokens as the model's. The result for a row's newest token is kept by slot.
The first draft is sampled from that result, the others from the layer's own output in the model's
place, at positions whose blocks the step has already; the next step overwrites them. A whole model
computes the step's tokens at their own positions, and begins to draft by computing the row's newest
token, so each of its drafts is placed one position further. Drafts are sampled with the noise of
the samples that they predict, so a sampled token is predicted as well as the two distributions
agree. The device counts the drafts before the current one, so the same graph makes each draft. All
ranks make the same drafts.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from atom.model_ops.attention.step_plan import plan_captured_step
from atom.model_ops.backends.interface import Ops, SamplingTensors
from atom.model_ops.drafts import Drafts
from atom.model_ops.slots import SlotTensors
from atom.models.draft_models.draft_model import DraftModel
from atom.speculation.proposer import ComputedTokens, Drafting
from atom.utils.forward_context import ForwardContext, set_forward_context


class DraftModelProposer:
    """Proposes drafts by a draft model. block_size: tokens of a block."""

    catches_up = True

    def __init__(self, model: DraftModel, ops: Ops, state: SlotTensors, block_size: int) -> None:
        self._model = model
        self._ops = ops
        self._state = state
        self._block_size = block_size
        size = len(state.last_token), model.hidden_size
        self._hidden = torch.zeros(size, dtype=model.dtype, device=state.last_token.device)
        self._query_starts = torch.arange(
            len(state.last_token) + 1, dtype=torch.int32, device=state.last_token.device
        )

    def catch_up(self, computed: ComputedTokens) -> None:
        keeps = self._model.sees_states and len(computed.newest) > 0
        logits_indices = computed.newest if keeps else computed.positions.new_zeros(1)
        attention, token_ids = computed.attention, computed.next_ids
        if not self._model.sees_states:
            assert computed.states.token_ids is not None, "a decoder returns its tokens"
            token_ids = computed.states.token_ids
            # Its heads are none of the model's, by which results for later layers may be arranged.
            attention = tuple(replace(group, per_step={}) for group in attention)
        with set_forward_context(ForwardContext(attention, logits_indices)):
            hidden = self._model(token_ids, computed.positions, self._model.join(computed.states))
        if keeps:
            self._hidden[computed.slots] = hidden

    def prepare(self, slots: torch.Tensor, wanted: torch.Tensor, drafts: Drafts) -> Drafting:
        hidden = self._hidden.new_zeros((len(slots), self._hidden.shape[1]))
        return Drafting(slots, wanted, drafts, slots.new_zeros(1), hidden)

    def begin(self, drafting: Drafting) -> None:
        assert drafting.hidden is not None, "room was made by this proposer"
        drafting.ahead.zero_()
        if self._model.sees_states:
            drafting.hidden.copy_(self._hidden[drafting.slots])
        else:
            self._compute(drafting, self._state.last_token[drafting.slots], drafting.ahead)
        drafting.drafts.counts.copy_(drafting.wanted)
        drafting.drafts.token_ids[:, 0] = self._draw(drafting)

    def extend(self, drafting: Drafting) -> None:
        ahead, told = drafting.ahead, drafting.drafts.token_ids
        newest = told.index_select(1, ahead).squeeze(1)
        self._compute(drafting, newest, ahead if self._model.sees_states else ahead + 1)
        ahead.add_(1)
        told.index_copy_(1, ahead, self._draw(drafting).unsqueeze(1))

    def _compute(self, drafting: Drafting, newest: torch.Tensor, ahead: torch.Tensor) -> None:
        """Compute a token [R] int64 of each row, at the position `ahead` of the row's newest."""
        assert drafting.hidden is not None, "room was made by this proposer"
        slots = drafting.slots
        # A row that wants fewer overwrites its last place, which the step rewrites.
        place = torch.minimum(drafting.wanted, ahead)
        inputs = self._ops.prepare_drafted(slots, place, newest, self._state, self._block_size)
        # On the CPU the longest context is worth knowing; on a device it is not asked for.
        longest = self._state.max_blocks * self._block_size
        if slots.device.type == "cpu":
            longest = int(inputs.context_lens.max())
        starts = self._query_starts[: len(slots) + 1]
        attention = plan_captured_step(inputs, starts, longest)
        with set_forward_context(ForwardContext(attention)):
            drafting.hidden.copy_(self._model(newest, inputs.positions, drafting.hidden))

    def _draw(self, drafting: Drafting) -> torch.Tensor:
        """Draw the draft that has `ahead` others before it."""
        state, slots = self._state, drafting.slots
        assert drafting.hidden is not None, "room was made by this proposer"
        return self._model.draw(
            drafting.hidden,
            SamplingTensors(
                temperature=state.sampling.temperature[slots],
                seed=state.sampling.seed[slots],
                position=state.num_computed[slots] + 1 + drafting.ahead,
            ),
        )
