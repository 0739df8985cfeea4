"""What a drafter is told of a step that ran eagerly: it has its inputs."""

from __future__ import annotations

import torch

from atom.model_engine.runner.drafting.drafted_step import DraftedStep
from atom.model_engine.runner.step_runner import EagerTokens, SubmittedStep
from atom.speculation.drafter import ComputedTokens


def computed_eagerly(step: SubmittedStep, tokens: EagerTokens) -> ComputedTokens:
    """After the step was sampled, if any of its rows was."""
    inputs, next_ids = tokens.inputs, tokens.next_ids
    slots = newest = next_ids.new_zeros(0)
    if step.drawn is not None:
        looked_at = inputs.looked_at
        if looked_at is None:
            looked_at = torch.arange(len(next_ids), device=next_ids.device)
        next_ids[looked_at] = step.drawn
        slots, newest = inputs.sample_slots, looked_at
        if isinstance(step, DraftedStep):
            assert step.counts is not None, "a step is followed when it was sampled"
            slots, newest = step.layout.slots, looked_at[step.layout.first + step.counts - 1]
    return ComputedTokens(
        inputs.positions, next_ids, tokens.states, inputs.attention, slots, newest
    )
