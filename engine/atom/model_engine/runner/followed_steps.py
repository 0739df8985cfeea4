"""FollowedSteps: tells a drafter what each step computed, once its tokens are drawn.

A step that ran eagerly has its inputs; of one that a graph replayed they are made again from the
slots, which stand behind the step's tokens by then. Owned by DraftingStepRunner.
"""

from __future__ import annotations

import torch

from atom.model_engine.runner.drafted_step import DraftedStep
from atom.model_engine.runner.graph_runner import ForwardOutput
from atom.model_engine.runner.step_runner import EagerTokens, SubmittedStep
from atom.model_ops.attention.step_plan import plan_captured_step
from atom.model_ops.backends.interface import Ops
from atom.model_ops.slots import SlotTensors
from atom.models.hidden_states import HiddenStates
from atom.speculation.drafter import ComputedTokens, Drafter


class FollowedSteps:
    def __init__(self, drafter: Drafter, ops: Ops, state: SlotTensors, block_size: int) -> None:
        self._drafter = drafter
        self._ops = ops
        self._state = state
        self._block_size = block_size

    def follow(self, step: SubmittedStep, forward: ForwardOutput | None) -> None:
        """After the step was sampled; forward: what it was sampled of, if any row did."""
        if step.computed is not None:
            self._drafter.follow(self._of_eager(step, step.computed))
        elif forward is not None and forward.states is not None:
            self._drafter.follow(self._of_replayed(step, forward, forward.states))
        step.computed = step.drawn = None

    def _of_eager(self, step: SubmittedStep, tokens: EagerTokens) -> ComputedTokens:
        inputs, next_ids = tokens.inputs, tokens.next_ids
        slots = newest = next_ids.new_zeros(0)
        if step.drawn is not None:
            looked_at = inputs.looked_at
            if looked_at is None:
                looked_at = torch.arange(len(next_ids), device=next_ids.device)
            next_ids[looked_at] = step.drawn
            slots, newest = inputs.sample_slots, looked_at
            if isinstance(step, DraftedStep):
                slots, newest = step.slots, looked_at[_newest_draws(step)]
        return ComputedTokens(
            inputs.positions, next_ids, tokens.states, inputs.attention, slots, newest
        )

    def _of_replayed(
        self, step: SubmittedStep, forward: ForwardOutput, states: HiddenStates
    ) -> ComputedTokens:
        """A graph's rows are all decodes; a slot has moved on by as many tokens as its row got."""
        state = self._state
        if isinstance(step, DraftedStep):
            assert step.counts is not None, "a step is followed when it was sampled"
            assert step.drawn is not None, "a step is followed when it was sampled"
            slots, next_ids = step.slots[step.row], step.drawn
            behind = step.offset - step.counts[step.row]
            rows, newest = step.slots, _newest_draws(step)
        else:
            slots = rows = forward.slots
            next_ids, behind = state.last_token[slots], torch.full_like(slots, -1)
            newest = torch.arange(len(slots), device=slots.device)
        inputs = self._ops.prepare_drafted(slots, behind, next_ids, state, self._block_size)
        starts = torch.arange(len(slots) + 1, dtype=torch.int32, device=slots.device)
        longest = state.max_blocks * self._block_size
        attention = plan_captured_step(inputs, starts, longest, even=False)
        return ComputedTokens(inputs.positions, next_ids, states, attention, rows, newest)


def _newest_draws(step: DraftedStep) -> torch.Tensor:
    """Of each row the last draw that holds, [S]."""
    assert step.counts is not None, "a step is followed when it was sampled"
    return step.order.gather(1, (step.counts - 1).unsqueeze(1)).squeeze(1)
