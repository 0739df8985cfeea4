"""Choice of the autoscaler: KEDA's ScaledObject or a HorizontalPodAutoscaler. Pure.

Both aim at the same load per replica, which plan/scaling.py derives from the capacity.
"""

from __future__ import annotations

from atom_operator.children.autoscaling.hpa import horizontal_pod_autoscaler
from atom_operator.children.autoscaling.keda_scaledobject import scaled_object
from atom_operator.domain import Manifest, Plan
from atom_operator.integration_values import Autoscaling


def autoscaler(plan: Plan, wanted: Autoscaling) -> Manifest:
    """Render the object that `wanted.method` names."""
    if wanted.method == "KEDA":
        return scaled_object(plan.identity, plan.engine, plan.scale, wanted, plan.canary)
    return horizontal_pod_autoscaler(plan.identity, plan.engine, wanted, plan.canary)
