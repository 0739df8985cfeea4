"""The PodDisruptionBudget: a node drain takes at most one replica at a time. Pure.

Only with two replicas or more: with one, a budget that allows no disruption would block node drains
for ever, and one that allows it would have no effect.
"""

from __future__ import annotations

from atom_operator.children import naming
from atom_operator.domain import Identity, Manifest, ScalePlan
from atom_operator.integration_values import Integrations

_LEAST_REPLICAS = 2


def disruption_budget(
    identity: Identity, scale: ScalePlan, integrations: Integrations
) -> Manifest | None:
    """Return the budget, or None if the number of replicas makes none useful."""
    scaling = integrations.autoscaling
    most = scale.replicas if scaling is None else scaling.max_replicas
    if most < _LEAST_REPLICAS:
        return None
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": naming.metadata(identity, identity.key.name),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": naming.selector_labels(identity.key.name)},
            # A pod that is not ready protects nothing and must not hold a drain up.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
