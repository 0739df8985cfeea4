"""The autoscaler of the workload: KEDA's ScaledObject or a HorizontalPodAutoscaler. Pure.

Both aim at the same load per replica, which plan/scaling.py derives from the capacity. They scale
the workload and never the AtomDeployment, so that Git stays the owner of its spec.
"""

from __future__ import annotations

from typing import Any

from atom_operator.children import naming
from atom_operator.children.series import Selector, selector_of
from atom_operator.domain import DEPLOYMENT, Manifest, Plan
from atom_operator.integration_values import Autoscaling
from atom_operator.kinds import AUTOSCALER, LEADER_WORKER_SET, SCALED_OBJECT

_POLLING_SECONDS = 15
_FAILED_POLLS = 4
# How the metrics of an adapter for custom metrics are called; docs/guides/autoscaling.md has its
# rules. A colon, as in the engine's own names, is none of the characters that every adapter takes.
_RUNNING, _WAITING, _KV_USAGE = (
    "atom_requests_running",
    "atom_requests_waiting",
    "atom_kv_cache_usage_ratio",
)


def autoscaler(plan: Plan, wanted: Autoscaling) -> Manifest:
    """The one object that `wanted.method` names."""
    return _scaled_object(plan, wanted) if wanted.method == "KEDA" else _horizontal(plan, wanted)


def _target(plan: Plan) -> dict[str, str]:
    kind = LEADER_WORKER_SET if plan.engine.nodes > 1 else DEPLOYMENT
    return {"apiVersion": kind.api_version, "kind": kind.kind, "name": plan.key.name}


def _behavior(wanted: Autoscaling) -> dict[str, Any]:
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


def _horizontal(plan: Plan, wanted: Autoscaling) -> Manifest:
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
        "metadata": naming.metadata(plan, plan.key.name),
        "spec": {
            "scaleTargetRef": _target(plan),
            "minReplicas": max(1, wanted.min_replicas),
            "maxReplicas": wanted.ceiling,
            "metrics": metrics,
            "behavior": _behavior(wanted),
        },
    }


def _pods_metric(name: str, average: str) -> dict[str, Any]:
    target = {"type": "AverageValue", "averageValue": average}
    return {"type": "Pods", "pods": {"metric": {"name": name}, "target": target}}


def _scaled_object(plan: Plan, wanted: Autoscaling) -> Manifest:
    return {
        "apiVersion": SCALED_OBJECT.api_version,
        "kind": SCALED_OBJECT.kind,
        "metadata": naming.metadata(plan, plan.key.name),
        "spec": {
            "scaleTargetRef": _target(plan),
            "minReplicaCount": wanted.min_replicas,
            "maxReplicaCount": wanted.ceiling,
            "pollingInterval": _POLLING_SECONDS,
            "cooldownPeriod": wanted.cooldown_seconds,
            # A Prometheus that is down says nothing about the load.
            "fallback": {
                "failureThreshold": _FAILED_POLLS,
                "replicas": max(1, wanted.min_replicas),
                "behavior": "currentReplicasIfHigher",
            },
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(wanted)}},
            "triggers": _triggers(plan, wanted),
        },
    }


def _triggers(plan: Plan, wanted: Autoscaling) -> list[dict[str, Any]]:
    targets, of = wanted.targets, selector_of(plan)
    usage = f"{targets.kv_usage_percent / 100:g}"
    # Sums over the pods: KEDA divides them by the replicas.
    found = [
        ("waiting", _sum(of, "atom:requests_waiting"), str(targets.waiting)),
        ("kv-usage", _sum(of, "atom:kv_cache_usage_ratio"), usage),
    ]
    if targets.concurrency is not None:
        running = _sum(of, "atom:requests_running")
        found.insert(0, ("running", running, str(targets.concurrency)))
    if wanted.activation_query is not None:
        found.append(("activation", wanted.activation_query, str(targets.concurrency or 1)))
    return [_trigger(wanted, *item) for item in found]


def _sum(of: Selector, metric: str) -> str:
    """The metric over all pods; 0 from an engine that has not counted yet, nothing from none."""
    return f"sum({of(metric)}) or 0 * sum({of('atom:ready')})"


def _trigger(wanted: Autoscaling, name: str, query: str, threshold: str) -> dict[str, Any]:
    trigger: dict[str, Any] = {
        "type": "prometheus",
        "name": name,
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": str(wanted.prometheus_address),
            "query": query,
            "threshold": threshold,
            "activationThreshold": "0",
            # With a pod there is always a series: none is a scrape that fails, and not idleness.
            "ignoreNullValues": str(wanted.min_replicas == 0).lower(),
        },
    }
    if wanted.authentication is not None:
        kind, login = wanted.authentication
        trigger["authenticationRef"] = {"kind": kind, "name": login}
    return trigger
