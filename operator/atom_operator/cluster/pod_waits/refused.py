"""Reasons why a workload's pods are not created: the newest words of the quota or policy.

A LeaderWorkerSet has no condition for a refusal: its pods are of StatefulSets, one of its own name
and one for each leader, and only Events report it, about those or, if they are refused themselves,
about the set. A Deployment has a condition, but its controllers write it once: while pods are
refused, first for one reason and then for another, it keeps the first reason, and only the Events
of its ReplicaSets continue. A pod whose ResourceClaim is refused exists, but no more: it counts as
refused, by the words of its own Event. Called by observe.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atom_operator import constants
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import (
    DEPLOYMENT,
    POD,
    DeploymentState,
    Manifest,
    ObjectKey,
    Observed,
    PodState,
)
from atom_operator.domain.observed import RefusedPods
from atom_operator.kinds import LEADER_WORKER_SET
from atom_operator.pods.events import Told, newest_claim_refusal, newest_refusal
from atom_operator.pods.refused_names import makers_of_refused, without_drawn_name

_MOST_ASKED = 3  # of many groups whose pods are refused
_REPLICA_SET = re.compile(r'[Rr]eplica ?[Ss]et "([^"]+)"')


async def with_refusal(port: ClusterPort, key: ObjectKey, observed: Observed) -> Observed:
    """Return the observation with the refusal that Events report."""
    groups = _newest(observed, in_groups=True)
    words, newest = None, None
    if groups is not None and len(observed.pods) < pods_wanted(groups):
        newest = await _of_groups(port, key, observed)
        words = newest.words if newest is not None else None
    failure = _failure_of(_newest(observed, in_groups=False))
    if failure is not None:
        newest = await _of_deployment(port, key, failure) or newest
        words = _newer_words(failure, newest) or words
    untold = [pod for pod in observed.pods if pod.placement.lacks_claim]
    if failure is None and newest is None and observed.lacking_claims:
        newest = await _of_claims(port, key, observed.lacking_claims)
        words = newest.words if newest is not None else None
        untold = [pod for pod in untold if pod not in observed.lacking_claims]
    at = newest.at if newest is not None else None
    unclaimed = await _of_claims(port, key, untold)
    why = unclaimed.words if unclaimed is not None else None
    return told(replace(observed, refused=RefusedPods(words, at, why)))


def told(observed: Observed) -> Observed:
    """Put the refusal into the state of every workload whose pods are refused."""
    words = observed.refused.words
    if words is None:
        return observed
    unclaimed = {pod.revision for pod in observed.lacking_claims}

    def tell(state: DeploymentState) -> DeploymentState:
        refused = state.in_groups or state.progress.refused_message is not None
        refused = refused or state.revision in unclaimed
        if not refused:
            return state
        return replace(state, progress=replace(state.progress, refused_message=words))

    running = observed.deployment
    return replace(
        observed,
        deployment=tell(running) if running is not None else None,
        workloads={at: tell(state) for at, state in observed.workloads.items()},
    )


def pods_wanted(groups: Manifest) -> int:
    """Return how many pods a LeaderWorkerSet is to have."""
    spec = groups["spec"]
    return int(spec.get("replicas", 1)) * int(spec["leaderWorkerTemplate"].get("size", 1))


def _newest(observed: Observed, *, in_groups: bool) -> Manifest | None:
    kind = LEADER_WORKER_SET if in_groups else DEPLOYMENT
    return next((item for at, item in observed.children.items() if at.kind == kind), None)


async def _of_groups(port: ClusterPort, key: ObjectKey, observed: Observed) -> Told | None:
    leaders = sorted(pod.name for pod in observed.pods if pod.role == constants.ROLE_LEADER)
    events = await port.list_events(key.namespace, LEADER_WORKER_SET.kind, key.name)
    for name in (key.name, *leaders[:_MOST_ASKED]):
        events += await port.list_events(key.namespace, "StatefulSet", name)
    made = [pod.created_at for pod in observed.pods if pod.created_at is not None]
    return newest_refusal(events, after=max(made, default=None))


async def _of_claims(port: ClusterPort, key: ObjectKey, waiting: Sequence[PodState]) -> Told | None:
    """Return the newest words against a claim of the pods that wait for theirs."""
    found = []
    for pod in waiting[:_MOST_ASKED]:
        events = await port.list_events(key.namespace, POD.kind, pod.name)
        found.append(newest_claim_refusal(events, of=pod.uid))
    return max((each for each in found if each), key=lambda each: each.at, default=None)


@dataclass(frozen=True, slots=True)
class _Failure:
    """Hold a Deployment's conditions about refused pods and about its progress."""

    reason: str
    message: str
    progress: str


def _failure_of(deployment: Manifest | None) -> _Failure | None:
    told = ((deployment or {}).get("status") or {}).get("conditions") or ()
    conditions: dict[Any, Mapping[str, Any]] = {item.get("type"): item for item in told}
    failure, progress = conditions.get("ReplicaFailure") or {}, conditions.get("Progressing") or {}
    if failure.get("status") != "True":
        return None
    words = (str(failure.get("reason")), str(failure.get("message")), str(progress.get("message")))
    return _Failure(*words)


async def _of_deployment(port: ClusterPort, key: ObjectKey, failure: _Failure) -> Told | None:
    names = makers_of_refused(failure.message) + _REPLICA_SET.findall(failure.progress)
    events: list[Manifest] = []
    for name in dict.fromkeys(names):
        events += await port.list_events(key.namespace, "ReplicaSet", name)
    return newest_refusal(events)


def _newer_words(failure: _Failure, newest: Told | None) -> str | None:
    if newest is None or without_drawn_name(newest.words) == without_drawn_name(failure.message):
        return None
    return f"{failure.reason}: {without_drawn_name(newest.words)}"
