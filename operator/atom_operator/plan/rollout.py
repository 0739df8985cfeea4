"""How pods are replaced when the revision changes; pure."""

from __future__ import annotations

from atom_operator.domain import Accelerator, RolloutSteps


def choose_rollout(accelerator: Accelerator) -> RolloutSteps:
    """Surge where a spare pod costs only CPU; replace in place where it would cost a GPU.

    On GPUs a surge pod stays Pending for ever when every device is taken, and the rollout behind
    it with it. Replacing one at a time gives up a replica for the while instead.
    """
    if accelerator.type == "cpu":
        return RolloutSteps(max_surge=1, max_unavailable=0)
    return RolloutSteps(max_surge=0, max_unavailable=1)
