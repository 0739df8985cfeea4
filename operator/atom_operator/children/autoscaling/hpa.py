"""A HorizontalPodAutoscaler, by metrics that an adapter for custom metrics serves. Pure."""

from __future__ import annotations

from typing import Any

from atom_operator.children import naming
from atom_operator.children.autoscaling.scale_target import scale_target, scaling_behavior
from atom_operator.domain import EngineOptions, Identity, Manifest
from atom_operator.domain.canary import Canary
from atom_operator.integration_values import Autoscaling
from atom_operator.kinds import AUTOSCALER

# Metric names in an adapter for custom metrics; docs/guides/autoscaling.md has its rules. Not every
# adapter accepts a colon, as in the engine's own names.
_RUNNING, _WAITING, _KV_USAGE = (
    "atom_requests_running",
    "atom_requests_waiting",
    "atom_kv_cache_usage_ratio",
)


def horizontal_pod_autoscaler(
    identity: Identity, engine: EngineOptions, wanted: Autoscaling, canary: Canary | None
) -> Manifest:
    """Render the HorizontalPodAutoscaler, with a metric for each measure of load."""
    targets = wanted.targets
    metrics = [
        _pods_metric(_WAITING, str(targets.waiting)),
        _pods_metric(_KV_USAGE, f"{targets.kv_usage_percent * 10}m"),
    ]
    if targets.concurrency is not None:
        metrics.insert(0, _pods_metric(_RUNNING, str(targets.concurrency)))
    return {
        "apiVersion": AUTOSCALER.api_version,
        "kind": AUTOSCALER.kind,
        "metadata": naming.metadata(identity, identity.key.name),
        "spec": {
            "scaleTargetRef": scale_target(identity.key, engine),
            "minReplicas": max(1, wanted.fewest, min(_kept(canary), wanted.ceiling)),
            "maxReplicas": wanted.ceiling,
            "metrics": metrics,
            "behavior": scaling_behavior(wanted),
        },
    }


def _kept(canary: Canary | None) -> int:
    """Return the replicas that an undone canary's requests need: an average over these pods alone
    does not count them."""
    return (canary.keeps if canary is not None else None) or 0


def _pods_metric(name: str, average: str) -> dict[str, Any]:
    target = {"type": "AverageValue", "averageValue": average}
    return {"type": "Pods", "pods": {"metric": {"name": name}, "target": target}}
