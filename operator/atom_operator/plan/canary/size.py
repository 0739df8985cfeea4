"""Sizes a canary by its share, and bounds its share by the pods that it has. Pure.

Without spec.canary.replicas it has the share of the step of the replicas beside it, so that none of
its pods has more work than one of those. A share that its pods cannot carry yet, or for which there
is no place, waits; the canary takes as much as those that serve can carry.
"""

from __future__ import annotations

from atom_operator.domain.canary import CanaryAsked


def pods_asked(asked: CanaryAsked, step: int, beside: int) -> int:
    """Return the number of the canary's pods at a step, counted from 0, beside `beside`
    replicas."""
    if asked.replicas is not None:
        return asked.replicas
    return pods_of_share(asked.steps[min(step, len(asked.steps) - 1)].weight, beside)


def pods_of_share(weight: int, beside: int) -> int:
    """Return the pods whose work a share in percent of the requests is, where `beside` replicas
    could serve all of them: at least 1, and never more than those."""
    return max(1, -(-min(weight, 100) * beside // 100))


def pods_that_stay(pods: int, ready: int) -> int:
    """Return the pods of a canary while others are replaced: one that waits would take the place
    that an old pod leaves to its successor."""
    return min(pods, max(1, ready))


def carried_share(asked: CanaryAsked, weight: int, ready: int, beside: int) -> int:
    """Return how much of a share in percent the canary's pods that serve can carry. A number of
    pods that the spec names is taken for enough."""
    if asked.replicas is not None or not beside:
        return weight
    return min(weight, 100 * ready // beside)
