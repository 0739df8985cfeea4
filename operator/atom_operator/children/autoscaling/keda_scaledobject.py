"""KEDA's ScaledObject, whose triggers are queries of Prometheus. Pure."""

from __future__ import annotations

from typing import Any

from atom_operator.children import naming
from atom_operator.children.autoscaling.latency_signal import FULL, LOAD, wanted_replicas
from atom_operator.children.autoscaling.scale_target import scale_target, scaling_behavior
from atom_operator.children.series import Selector, selector_of
from atom_operator.domain import EngineOptions, Identity, Manifest, ObjectKey, ScalePlan
from atom_operator.domain.canary import Canary
from atom_operator.integration_values import Autoscaling
from atom_operator.kinds import SCALED_OBJECT

_POLLING_SECONDS = 15
_FAILED_POLLS = 4
# KEDA takes its own HorizontalPodAutoscaler away and keeps this number until the annotation goes.
_PAUSED = {"autoscaling.keda.sh/paused-replicas": "0"}


def scaled_object(
    identity: Identity,
    engine: EngineOptions,
    scale: ScalePlan,
    wanted: Autoscaling,
    canary: Canary | None,
) -> Manifest:
    """Render the ScaledObject, with a trigger for each measure of load."""
    return {
        "apiVersion": SCALED_OBJECT.api_version,
        "kind": SCALED_OBJECT.kind,
        "metadata": naming.metadata(
            identity, identity.key.name, _PAUSED if scale.suspended else None
        ),
        "spec": {
            "scaleTargetRef": scale_target(identity.key, engine),
            "minReplicaCount": wanted.fewest,
            "maxReplicaCount": wanted.most,
            "pollingInterval": _POLLING_SECONDS,
            "cooldownPeriod": wanted.cooldown_seconds,
            # A Prometheus that is down reports nothing about the load.
            "fallback": {
                "failureThreshold": _FAILED_POLLS,
                "replicas": max(1, wanted.min_replicas),
                "behavior": "currentReplicasIfHigher",
            },
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": scaling_behavior(wanted)}},
            "triggers": _triggers(identity.key, wanted, canary),
        },
    }


def _triggers(key: ObjectKey, wanted: Autoscaling, canary: Canary | None) -> list[dict[str, Any]]:
    # A canary's requests count too: they come back when it is undone.
    also = () if canary is None else (canary.name,)
    targets, of = wanted.targets, selector_of(key, *also)
    # Sums over the pods: KEDA divides them by the replicas.
    found = []
    if targets.waiting is not None:
        found.append(("waiting", _sum(of, "atom:requests_waiting"), str(targets.waiting)))
    if targets.kv_usage_percent is not None:
        usage = f"{targets.kv_usage_percent / 100:g}"
        found.append(("kv-usage", _sum(of, "atom:kv_cache_usage_ratio"), usage))
    if targets.slo is not None:
        signals = [("slo", wanted_replicas(of, targets.slo), "1")]
        found = [*signals, ("load", _sum(of, LOAD), f"{FULL:g}"), *found]
    if targets.concurrency is not None:
        running = _sum(of, "atom:requests_running")
        found.insert(0, ("running", running, str(targets.concurrency)))
    if wanted.activation_query is not None:
        found.append(("activation", wanted.activation_query, str(targets.concurrency or 1)))
    return [_trigger(wanted, *item) for item in found]


def _sum(of: Selector, metric: str) -> str:
    """Sum the metric over all pods; 0 from an engine that has not counted yet, nothing from
    none."""
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
