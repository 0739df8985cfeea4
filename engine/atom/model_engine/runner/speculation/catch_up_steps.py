"""The inputs of an eagerly run step, as a proposer catches up by them."""

from __future__ import annotations

import torch

from atom.model_engine.runner.speculation.verify_step import VerifyStep
from atom.model_engine.runner.submitted_step import EagerTokens, SubmittedStep
from atom.speculation.proposer import ComputedTokens


def computed_eagerly(step: SubmittedStep, tokens: EagerTokens) -> ComputedTokens:
    """Build the proposer's view of an eager step after its sampling, if any of its rows was
    sampled."""
    inputs, next_ids = tokens.inputs, tokens.next_ids
    slots = newest = next_ids.new_zeros(0)
    if step.drawn is not None:
        logits_indices = inputs.logits_indices
        if logits_indices is None:
            logits_indices = torch.arange(len(next_ids), device=next_ids.device)
        next_ids[logits_indices] = step.drawn
        slots, newest = inputs.sample_slots, logits_indices
        if isinstance(step, VerifyStep):
            assert step.counts is not None, (
                "the proposer catches up with a step when it was sampled"
            )
            slots, newest = step.layout.slots, logits_indices[step.layout.first + step.counts - 1]
    return ComputedTokens(
        inputs.positions, next_ids, tokens.states, inputs.attention, slots, newest
    )
