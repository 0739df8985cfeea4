"""A HorizontalPodAutoscaler, by metrics that an adapter for custom metrics serves. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from atom_operator.children import naming
from atom_operator.children.autoscaling.latency_signal import CALM, FULL
from atom_operator.children.autoscaling.scale_target import scale_target, scaling_behavior
from atom_operator.domain import EngineOptions, Identity, Manifest
from atom_operator.domain.canary import Canary
from atom_operator.integration_values import Autoscaling, ScalingTargets
from atom_operator.kinds import AUTOSCALER

# Metric names in an adapter for custom metrics; docs/guides/autoscaling.md has its rules. Not every
# adapter accepts a colon, as in the engine's own names.
_RUNNING, _WAITING, _KV_USAGE, _TTFT, _ITL, _LOAD = (
    "atom_requests_running",
    "atom_requests_waiting",
    "atom_kv_cache_usage_ratio",
    "atom_predicted_ttft_seconds",
    "atom_predicted_itl_seconds",
    "atom_predicted_load_ratio",
)


def horizontal_pod_autoscaler(
    identity: Identity, engine: EngineOptions, wanted: Autoscaling, canary: Canary | None
) -> Manifest:
    """Render the HorizontalPodAutoscaler, with a metric for each measure of load."""
    targets = wanted.targets
    metrics = []
    if targets.waiting is not None:
        metrics.append(_pods_metric(_WAITING, str(targets.waiting)))
    if targets.kv_usage_percent is not None:
        metrics.append(_pods_metric(_KV_USAGE, f"{targets.kv_usage_percent * 10}m"))
    if targets.concurrency is not None:
        metrics.insert(0, _pods_metric(_RUNNING, str(targets.concurrency)))
    metrics = [*_latencies(targets), *metrics]
    return {
        "apiVersion": AUTOSCALER.api_version,
        "kind": AUTOSCALER.kind,
        "metadata": naming.metadata(identity, identity.key.name),
        "spec": {
            "scaleTargetRef": scale_target(identity.key, engine),
            "minReplicas": max(1, wanted.fewest, min(_kept(canary), wanted.most)),
            "maxReplicas": wanted.most,
            "metrics": metrics,
            "behavior": scaling_behavior(wanted),
        },
    }


def _latencies(targets: ScalingTargets) -> Iterator[dict[str, Any]]:
    """Yield the predicted latencies. An average of this API has no band in which nothing changes,
    so that the autoscaler aims at the calm end of the band."""
    slo = targets.slo
    if slo is None:
        return
    for name, seconds in ((_TTFT, slo.ttft_seconds), (_ITL, slo.itl_seconds)):
        if seconds is not None:
            yield _pods_metric(name, f"{max(1, round(CALM * seconds * 1e3))}m")
    yield _pods_metric(_LOAD, f"{FULL * 1e3:.0f}m")


def _kept(canary: Canary | None) -> int:
    """Return the replicas that an undone canary's requests need: an average over these pods alone
    does not count them."""
    return (canary.keeps if canary is not None else None) or 0


def _pods_metric(name: str, average: str) -> dict[str, Any]:
    target = {"type": "AverageValue", "averageValue": average}
    return {"type": "Pods", "pods": {"metric": {"name": name}, "target": target}}
