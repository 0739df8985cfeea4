"""Autoscalers that do what they are told at once: the HorizontalPodAutoscaler's controller and
KEDA's, with the load of a workload as a number of full replicas.

Ideal, so that whatever goes wrong with the number of replicas is not theirs: no metric is late, and
the number that the load asks for is right. They keep to the bounds as the real ones do: at once.
"""

from __future__ import annotations

import math
from typing import Any

from atom_operator import constants
from atom_operator.domain import WORKLOAD_KINDS, Manifest
from atom_operator.kinds import AUTOSCALER, HTTP_ROUTE, SCALED_OBJECT
from tests.support.in_memory_cluster.state import ClusterState

_PERIOD_SECONDS = 15.0
_PAUSED_REPLICAS = "autoscaling.keda.sh/paused-replicas"


def sync_autoscalers(state: ClusterState) -> None:
    for item in state.all(SCALED_OBJECT):
        _sync_scaled_object(state, item)
    for item in state.all(AUTOSCALER):
        _sync_autoscaler(state, item)


def _sync_autoscaler(state: ClusterState, item: Manifest) -> None:
    target = _target(state, item)
    if target is None:
        return
    replicas = target["spec"].get("replicas", 1)
    status: dict[str, Any] = {"currentReplicas": replicas, "desiredReplicas": replicas}
    if not replicas:
        words = "scaling is disabled since the replica count of the target is zero"
        inactive = _condition("ScalingActive", "False", "ScalingDisabled", words)
        state.set_status(item, {**status, "conditions": [inactive]})
        return
    spec = item["spec"]
    least, most = spec.get("minReplicas", 1), spec["maxReplicas"]
    wanted = min(max(_asked(state, item, target), least), most)
    wanted = _held(state, item, replicas, wanted, most)
    conditions = [
        _condition("AbleToScale", "True", "ReadyForNewScale", "recommended size matches"),
        _condition("ScalingActive", "True", "ValidMetricFound", "the HPA was able to compute"),
    ]
    status["desiredReplicas"] = wanted
    state.set_status(item, {**status, "conditions": conditions})
    if wanted != replicas:
        words = f"New size: {wanted}; reason: {'bounds' if replicas > most else 'load'}"
        state.record(target, "SuccessfulRescale", words, "Normal")
        scale(state, target, wanted)


def _held(state: ClusterState, item: Manifest, replicas: int, wanted: int, most: int) -> int:
    """What stabilisation leaves of a wish for fewer: nothing holds where the bound itself fell."""
    window = (
        item["spec"].get("behavior", {}).get("scaleDown", {}).get("stabilizationWindowSeconds", 300)
    )
    wishes = state.first_note(item, "wishes", [])
    # Of equal wishes the last one counts.
    wishes[:] = [wish for wish in wishes if state.time - wish[0] < window and wish[1] != wanted]
    wishes.append([state.time, wanted])
    if wanted < replicas:
        state.look_after(wishes[0][0] + window - state.time)
    if wanted > replicas:
        return wanted
    return min(max(wish[1] for wish in wishes), replicas, most) if wanted < replicas else wanted


def _sync_scaled_object(state: ClusterState, item: Manifest) -> None:
    spec, metadata = item["spec"], item["metadata"]
    paused_at = (metadata.get("annotations") or {}).get(_PAUSED_REPLICAS)
    if paused_at is not None:
        _pause(state, item, int(paused_at))
        return
    name = f"keda-hpa-{metadata['name']}"
    least, most = spec.get("minReplicaCount", 0), spec.get("maxReplicaCount", 100)
    bounds = {"minReplicas": max(1, least), "maxReplicas": most}
    own = state.owned(AUTOSCALER, item)
    if own:
        (hpa,) = own
        if {key: hpa["spec"][key] for key in bounds} != bounds:
            hpa["spec"] |= bounds
            hpa["metadata"]["generation"] += 1
            state.api.touch(hpa)
    else:
        behavior = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
        made = {
            "metadata": {
                "name": name,
                "namespace": metadata["namespace"],
                "labels": dict(metadata.get("labels") or {}),  # KEDA copies them
            },
            "spec": {"scaleTargetRef": spec["scaleTargetRef"], **bounds, **behavior},
        }
        state.create(AUTOSCALER, made, item)
    target = _target(state, item)
    if target is not None:
        _to_zero_and_back(state, item, target, least)
    ready = _condition("Ready", "True", "ScaledObjectReady", "is defined correctly")
    state.set_status(item, {"conditions": [ready]})


def _pause(state: ClusterState, item: Manifest, replicas: int) -> None:
    """KEDA takes its autoscaler away and holds the target at the number that it is told."""
    for own in state.owned(AUTOSCALER, item):
        state.remove(AUTOSCALER, own)
    target = _target(state, item)
    if target is not None and target["spec"].get("replicas", 1) != replicas:
        scale(state, target, replicas)
    paused = _condition("Paused", "True", "ScaledObjectPaused", "ScaledObject is paused")
    # What it says of itself when it was paused before it was ever ready.
    ready = _condition("Ready", "Unknown", "ScaledObjectPaused", "ScaledObject is paused")
    state.set_status(item, {"conditions": [paused, ready]})


def _to_zero_and_back(state: ClusterState, item: Manifest, target: Manifest, least: int) -> None:
    """KEDA itself starts the first replica and stops the last one."""
    replicas = target["spec"].get("replicas", 1)
    active = state.load.get(target["metadata"]["name"], 0.0) > 0
    if active:
        state.note(item, "active at", state.time)
    idle = state.time - state.first_note(item, "active at", state.time)
    if active and not replicas:
        scale(state, target, max(1, least))
    elif not active and not least and replicas and idle >= item["spec"].get("cooldownPeriod", 300):
        scale(state, target, 0)
    if not least:
        state.look_after(_PERIOD_SECONDS)


def _asked(state: ClusterState, item: Manifest, target: Manifest) -> int:
    """The replicas for the requests that its metrics count: those of the target, and of a canary
    that its queries name."""
    name = target["metadata"]["name"]
    load = state.load.get(name, 0.0)
    if not _counts(state, item, f"{name}-canary"):
        load *= (100 - share_of_canary(state, name)) / 100
    return math.ceil(round(load, 6))


def share_of_canary(state: ClusterState, name: str) -> int:
    """Requests of a hundred that a route sends to the canary of an AtomDeployment."""
    route = state.api.objects.get((HTTP_ROUTE, "default", name))
    for rule in route["spec"]["rules"] if route is not None else ():
        weights = {to["name"]: to.get("weight", 1) for to in rule["backendRefs"]}
        return int(100 * weights.get(f"{name}-canary", 0) / (sum(weights.values()) or 1))
    return 0


def _counts(state: ClusterState, item: Manifest, name: str) -> bool:
    owners = [one for one in state.all(SCALED_OBJECT) if item in state.owned(AUTOSCALER, one)]
    queries = [each["metadata"]["query"] for one in owners for each in one["spec"]["triggers"]]
    return any(name in query for query in queries)


def _target(state: ClusterState, item: Manifest) -> Manifest | None:
    reference, namespace = item["spec"]["scaleTargetRef"], item["metadata"]["namespace"]
    for kind in WORKLOAD_KINDS:
        if kind.kind == reference["kind"]:
            return state.api.objects.get((kind, namespace, reference["name"]))
    return None


def scale(state: ClusterState, target: Manifest, replicas: int) -> None:
    """Write the scale subresource: whoever does owns the number from then on."""
    metadata = target["metadata"]
    for kind in WORKLOAD_KINDS:
        key = (kind, metadata["namespace"], metadata["name"])
        if state.api.objects.get(key) is target:
            state.api.owned_fields.pop((key, constants.HANDOVER_MANAGER), None)
            state.api.owned_fields[key, "autoscaler"] = {("spec", "replicas")}
    target["spec"]["replicas"] = replicas
    metadata["generation"] += 1
    state.api.touch(target)


def _condition(kind: str, status: str, reason: str, message: str) -> Manifest:
    return {"type": kind, "status": status, "reason": reason, "message": message}
