"""Reasons why a pod has no node, or has started no container, that only Events report.

The scheduler reports only that a claim is not bound; its provisioner reports why, about the claim.
Of a volume that it cannot mount, and a sandbox that it cannot make, the kubelet reports only
ContainerCreating. Called by observe and jobs, for pods that are not ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import POD, VOLUME_CLAIM, Manifest, PodState
from atom_operator.pods.events import Told, last_of
from atom_operator.pods.pod_state import has_begun, placed_at

_UNBOUND = "unbound immediate PersistentVolumeClaims"
_NOT_PROVIDED = ("ProvisioningFailed", "FailedBinding", "ProvisioningCleanupFailed")
# The controller that attaches volumes is more specific than the kubelet that waits for it.
_NOT_ATTACHED = ("FailedAttachVolume",)
_NOT_BEGUN = (
    "FailedMount",
    "FailedMapVolume",
    "FailedCreatePodSandBox",
    "FailedCreatePodContainer",
)
# These follow once the obstacle is gone: a large image is pulled for minutes.
_ATTACHED = ("SuccessfulAttachVolume",)
_BEGUN = ("Pulling", "Pulled", "Created", "Started")
# Kubelets also complain about volumes that arrive a moment later.
_LASTS = timedelta(seconds=30)


async def with_volume_words(
    port: ClusterPort, pod: Manifest, state: PodState, now: datetime | None
) -> PodState:
    """Return the state of a pod, with the Events' reason for its wait if there is no other. A pod
    that got its node a moment before `now` is not asked about."""
    if state.ready or state.health.problem is not None:
        return state
    told = state.placement.unschedulable_message
    if told is not None:
        words = await _of_claims(port, pod) if _UNBOUND in told else None
        if words is None:
            return state
        placement = replace(state.placement, unschedulable_message=f"{told} {words}")
        return replace(state, placement=placement)
    placed = placed_at(pod)
    if placed is None or not state.placement.scheduled or has_begun(pod):
        return state
    if now is not None and now - placed < _LASTS:
        return state
    problem = await _of_pod(port, pod, placed)
    return replace(state, health=replace(state.health, problem=problem))


async def _of_claims(port: ClusterPort, pod: Manifest) -> str | None:
    namespace = pod["metadata"]["namespace"]
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    claims = (item.get("persistentVolumeClaim") for item in volumes)
    for name in (claim["claimName"] for claim in claims if claim):
        events = await port.list_events(namespace, VOLUME_CLAIM.kind, name)
        found = last_of(events, _NOT_PROVIDED)
        if found is not None:
            return f"claim {name}: {found.words}"
    return None


async def _of_pod(port: ClusterPort, pod: Manifest, placed: datetime) -> str | None:
    metadata: Mapping[str, str] = pod["metadata"]
    events = await port.list_events(metadata["namespace"], POD.kind, metadata["name"])
    newest = last_of(events, (*_NOT_ATTACHED, *_NOT_BEGUN))
    if newest is None or newest.at - placed < _LASTS:
        return None
    if _is_past(newest, last_of(events, _BEGUN)):
        return None
    detached = last_of(events, _NOT_ATTACHED)
    if detached is None or _is_past(detached, last_of(events, _ATTACHED)):
        return newest.words
    return detached.words


def _is_past(told: Told, better: Told | None) -> bool:
    """Return whether the reported fault has been repaired since."""
    return better is not None and better.at >= told.at
