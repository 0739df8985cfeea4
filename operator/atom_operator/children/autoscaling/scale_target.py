"""What every kind of autoscaler scales, and how fast. Pure.

They scale the workload and never the AtomDeployment, so that Git stays the owner of its spec.
"""

from __future__ import annotations

from typing import Any

from atom_operator.domain import DEPLOYMENT, EngineOptions, ObjectKey
from atom_operator.integration_values import Autoscaling
from atom_operator.kinds import LEADER_WORKER_SET


def scale_target(key: ObjectKey, engine: EngineOptions) -> dict[str, str]:
    """Name the workload by the API version and kind that a replica has."""
    kind = LEADER_WORKER_SET if engine.nodes > 1 else DEPLOYMENT
    return {"apiVersion": kind.api_version, "kind": kind.kind, "name": key.name}


def scaling_behavior(wanted: Autoscaling) -> dict[str, Any]:
    """Scale up at once, down slowly: a replica that was given up takes minutes to come back."""
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": 0,
            "policies": [{"type": "Percent", "value": 100, "periodSeconds": 60}],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": wanted.cooldown_seconds,
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
        },
    }
