"""Observed state, typed: owned children, the Deployment's progress, the pods of its workloads.

`observe` reads; the parsing functions are pure and know how Kubernetes reports things.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from atom_operator import constants
from atom_operator.cluster.errors import RefusedError
from atom_operator.cluster.foreign_edits import foreign_edits, scaled_by
from atom_operator.cluster.pod_waits.predecessors import with_predecessors_end
from atom_operator.cluster.pod_waits.refused import pods_wanted, with_refusal
from atom_operator.cluster.pod_waits.volumes import with_volume_words
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import (
    CHILD_KINDS,
    CONFIG_MAP,
    CONTROLLER_REVISION,
    POD,
    ChildKey,
    DeploymentState,
    EndedPod,
    Evidence,
    InspectedConfig,
    Manifest,
    ObjectKey,
    Observed,
    PodRevision,
    PodState,
    Rollback,
    Rollout,
    RolloutStrategy,
    SpecRecord,
    StartupTimes,
    runs_engines,
)
from atom_operator.domain.observed import OthersWrites, Records, WorkloadNotes, WorkloadProgress
from atom_operator.domain.origin import read_origin
from atom_operator.domain.profile import Profile
from atom_operator.kinds import QUOTA_WORKLOAD, RESOURCE_CLAIM_TEMPLATE, Kind
from atom_operator.pods.claim_charges import with_claims
from atom_operator.pods.events import newest_warning
from atom_operator.pods.kueue_verdict import waits_for_quota, with_quota_words, workload_labels
from atom_operator.pods.pod_state import (
    annotation,
    ended_pod,
    fell_with_its_group,
    has_ended,
    leaving_pod,
    pod_state,
    time_of,
)
from atom_operator.pods.silent_node import silent_pod

_logger = logging.getLogger(__name__)
# Of many pods that have ended, a few are asked why.
_MOST_ASKED = 3
# Of the controller of Deployments: its word for a missed deadline, and the default of that.
_DEADLINE_MISSED = "ProgressDeadlineExceeded"
_DEADLINE_SECONDS = 600


async def observe(
    port: ClusterPort,
    key: ObjectKey,
    uid: str,
    optional: Sequence[Kind] = (),
    now: datetime | None = None,
) -> Observed:
    """Return the children of the AtomDeployment with `uid`, and their pods.

    Of the `optional` kinds the unserved ones are named. If `now` is given, Events are read for the
    reasons that pods wait.
    """
    labels = {constants.LABEL_DEPLOYMENT: key.name}
    children: dict[ChildKey, Manifest] = {}
    for kind in CHILD_KINDS:
        for manifest in await port.list_labelled(kind, key.namespace, labels):
            if belongs_to(manifest, uid):
                children[ChildKey(kind, manifest["metadata"]["name"])] = manifest
    unserved: set[Kind] = set()
    for kind in optional:
        found = await _optional(port, kind, key.namespace, labels)
        if found is None:
            unserved.add(kind)
        for manifest in found or ():
            if belongs_to(manifest, uid):
                children[ChildKey(kind, manifest["metadata"]["name"])] = manifest
    pods = await port.list_labelled(POD, key.namespace, labels)
    live = [pod for pod in pods if not has_ended(pod)]
    running = [pod for pod in live if not pod["metadata"].get("deletionTimestamp")]
    states = await with_quotas(port, key.namespace, running)
    if now is not None:
        states = await _with_volumes(port, running, states, now)
    states = _with_claims(running, states, children)
    silent = (silent_pod(pod) for pod in live)
    leaving = (pod for pod in live if pod["metadata"].get("deletionTimestamp"))
    observed = replace(
        describe(children, states),
        unserved=frozenset(unserved),
        leaving=tuple(leaving_pod(pod) for pod in leaving),
        silent=tuple(pod for pod in silent if pod is not None),
        ended=tuple(ended_pod(pod) for pod in pods if _tells_an_end(pod)),
    )
    observed = replace(observed, ended=await _with_words(port, key, observed))
    return await with_refusal(port, key, observed)


async def with_quotas(
    port: ClusterPort, namespace: str, pods: Sequence[Manifest]
) -> tuple[PodState, ...]:
    """Return the pods' states; some pods that wait for a quota of Kueue's get its message."""
    states = [pod_state(pod) for pod in pods]
    held = [number for number, pod in enumerate(pods) if waits_for_quota(pod)]
    for number in held[:_MOST_ASKED]:
        labels = workload_labels(pods[number])
        found = await _optional(port, QUOTA_WORKLOAD, namespace, labels)
        states[number] = with_quota_words(states[number], found or ())
    return tuple(states)


def _with_claims(
    pods: Sequence[Manifest], states: Sequence[PodState], children: Mapping[ChildKey, Manifest]
) -> tuple[PodState, ...]:
    templates = {
        key.name: child for key, child in children.items() if key.kind == RESOURCE_CLAIM_TEMPLATE
    }
    return tuple(
        with_claims(state, pod, templates) for pod, state in zip(pods, states, strict=True)
    )


async def _with_volumes(
    port: ClusterPort, pods: Sequence[Manifest], states: Sequence[PodState], now: datetime
) -> tuple[PodState, ...]:
    """Read Events about the first few pods that wait for reasons that only Events report."""
    found = list(states)
    waiting = [number for number, state in enumerate(states) if not state.ready]
    for number in waiting[:_MOST_ASKED]:
        state = await with_volume_words(port, pods[number], found[number], now)
        found[number] = await with_predecessors_end(port, pods[number], state)
    return tuple(found)


def _tells_an_end(pod: Manifest) -> bool:
    """Return whether the pod ended by a fault; one that was asked to leave and ended well did
    not."""
    if fell_with_its_group(pod):
        return True
    is_leaving = pod["metadata"].get("deletionTimestamp") is not None
    return has_ended(pod) and not (is_leaving and not ended_pod(pod).message)


async def _with_words(
    port: ClusterPort, key: ObjectKey, observed: Observed
) -> tuple[EndedPod, ...]:
    """Return the ended pods, the newest with an Event's message if they have none: for a pod that
    was evicted and ended within its grace period the kubelet records only success."""
    running = observed.deployment
    silent = [pod for pod in observed.ended if not pod.message]
    if not silent or running is None or running.ready >= running.desired:
        return observed.ended
    asked = sorted(silent, key=lambda pod: (pod.at is not None, pod.at, pod.name))[-_MOST_ASKED:]
    words = {
        pod.name: newest_warning(await port.list_events(key.namespace, POD.kind, pod.name))
        for pod in asked
    }
    return tuple(replace(pod, message=words.get(pod.name) or pod.message) for pod in observed.ended)


async def _optional(
    port: ClusterPort, kind: Kind, namespace: str, labels: Mapping[str, str]
) -> list[Manifest] | None:
    """List objects of a kind; None also where we have no right to the kind: then it is as good as
    absent."""
    try:
        return await port.list_if_served(kind, namespace, labels)
    except RefusedError as error:
        _logger.info("%s is not used: %s", kind.kind, error)
        return None


def describe(children: Mapping[ChildKey, Manifest], pods: tuple[PodState, ...]) -> Observed:
    """Return the typed view of children and pods."""
    # There are two while one kind takes over from the other: the newest is the one requested last.
    found = {key: child for key, child in children.items() if runs_engines(key, child)}
    workload = _newest(found.values())
    records = _records(children)
    record = _newest(item for item in records if "template" in item["data"])
    accepted = _newest(item for item in records if constants.ACCEPTED_SPEC_KEY in item["data"])
    return Observed(
        children=children,
        deployment=deployment_state(workload, pods) if workload else None,
        pods=pods,
        records=Records(
            running=_pods_of(workload, "spec") if workload else None,
            last_ready=_pods_of(record, "data") if record else None,
            inspected=_inspected(children),
            accepted=_spec_record(accepted["data"]) if accepted else None,
            specs=_revision_specs(records),
            learned=tuple(item for child in children.values() for item in evidence_in(child)),
        ),
        workloads={key: deployment_state(child, pods) for key, child in found.items()},
    )


def _revision_specs(records: Iterable[Manifest]) -> dict[str, SpecRecord]:
    """Return the specs of other revisions than the workload's, by revision, oldest first."""
    in_order = sorted(records, key=lambda item: str(item["metadata"].get("creationTimestamp")))
    kept = [item["data"].get(constants.REVISION_SPEC_KEY) for item in in_order]
    return {str(data["revision"]): _spec_record(data) for data in kept if data is not None}


def _spec_record(data: Mapping[str, Any]) -> SpecRecord:
    profile = data.get(constants.ACCEPTED_PROFILE_KEY)
    return SpecRecord(
        data[constants.ACCEPTED_SPEC_KEY],
        Profile(profile["name"], template=profile["template"]) if profile else None,
        data.get("image"),
    )


def _inspected(children: Mapping[ChildKey, Manifest]) -> InspectedConfig | None:
    for key, child in children.items():
        model = annotation(child, constants.ANNOTATION_MODEL) if key.kind == CONFIG_MAP else None
        text = (child.get("data") or {}).get(constants.INSPECTED_KEY)
        if model and text:
            return InspectedConfig(model, text)
    return None


def evidence_in(manifest: Manifest) -> tuple[Evidence, ...]:
    """Return the evidence of former engines that a ConfigMap stores; empty for any other object, or
    for unreadable data."""
    text = (manifest.get("data") or {}).get(constants.LEARNED_KEY)
    if not isinstance(text, str):
        return ()
    try:
        return tuple(_evidence(item) for item in json.loads(text))
    except (ValueError, TypeError, KeyError) as error:
        _logger.warning("ConfigMap %s: %r", manifest["metadata"]["name"], error)
        return ()


def _evidence(item: Mapping[str, Any]) -> Evidence:
    fields = dict(item)
    startup = fields.pop("startup", None)
    found = Evidence(**fields, startup=StartupTimes(**startup) if startup else None)
    if found.predicted_reserve_bytes <= 0 or found.planned_total_bytes <= 0:
        raise ValueError("a size must be positive")
    return found


def _records(children: Mapping[ChildKey, Manifest]) -> list[Manifest]:
    return [
        child
        for key, child in children.items()
        if key.kind == CONTROLLER_REVISION and isinstance(child.get("data"), Mapping)
    ]


def _newest(records: Iterable[Manifest]) -> Manifest | None:
    """Return the newest record; an interrupted pass may have left the previous one beside it."""
    return max(
        records, key=lambda item: str(item["metadata"].get("creationTimestamp")), default=None
    )


def _pods_of(manifest: Manifest, field: str) -> PodRevision | None:
    """Return the pod template in `field` of a workload or of a record, if we gave it its name."""
    name, found = annotation(manifest, constants.ANNOTATION_REVISION), manifest.get(field) or {}
    template, nodes = found.get("template"), found.get("nodes", 1)
    if "leaderWorkerTemplate" in found:
        group = found["leaderWorkerTemplate"]
        template, nodes = _without_role(group["leaderTemplate"]), group.get("size", 1)
    if not name or not template:
        return None
    # After a rollback, the digest is that of the failed revision.
    digest = None if _rollback(manifest) else annotation(manifest, constants.ANNOTATION_SPEC_DIGEST)
    return PodRevision(name, template, digest, nodes)


def _without_role(template: Manifest) -> Manifest:
    """Return the template without its role label, as every pod of a group was made from it."""
    metadata = template["metadata"]
    labels = {
        key: value for key, value in metadata["labels"].items() if key != constants.LABEL_ROLE
    }
    return {**template, "metadata": {**metadata, "labels": labels}}


def belongs_to(manifest: Manifest, uid: str) -> bool:
    """Return whether the object's controller has this uid."""
    return controller_uid(manifest) == uid


def controller_uid(manifest: Manifest) -> str | None:
    """Return the uid of the object's controller, None if it has none."""
    for reference in manifest.get("metadata", {}).get("ownerReferences", ()):
        if reference.get("controller"):
            return str(reference.get("uid"))
    return None


def deployment_state(manifest: Manifest, pods: Sequence[PodState]) -> DeploymentState:
    """Return the progress as the controller of a Deployment or LeaderWorkerSet reports it."""
    metadata, spec = manifest["metadata"], manifest["spec"]
    status: Mapping[str, Any] = manifest.get("status") or {}
    conditions = {
        (item.get("type"), item.get("status")): item for item in status.get("conditions") or ()
    }
    groups = _has_groups(manifest)  # a LeaderWorkerSet counts only ready groups
    observed = status.get("observedGeneration", 0)  # which it does not report (up to v0.7.0)
    return DeploymentState(
        desired=spec.get("replicas", 1),
        replicas=status.get("replicas", 0),
        updated=status.get("updatedReplicas", 0),
        ready=status.get("readyReplicas", 0),
        available=status.get("readyReplicas" if groups else "availableReplicas", 0),
        revision=annotation(manifest, constants.ANNOTATION_REVISION),
        progress=WorkloadProgress(
            up_to_date=groups or observed >= metadata.get("generation", 0),
            # A LeaderWorkerSet that has finished is not progressing either; its deadline is ours.
            stalled_message=None if groups else _stalled(manifest, conditions),
            refused_message=_message(conditions.get(("ReplicaFailure", "True"))),
            deadline_seconds=_whole(annotation(manifest, constants.ANNOTATION_DEADLINE)),
            paused=spec.get("paused") is True,
        ),
        notes=_notes(manifest),
        others=OthersWrites(
            edits=foreign_edits(manifest),
            autoscaled=is_autoscalers(manifest),
            replicas_by=scaled_by(manifest),
        ),
        in_groups=groups,
        pods_agree=not groups or _groups_run(manifest, pods),
    )


def _notes(manifest: Manifest) -> WorkloadNotes:
    """Return our own notes on a workload."""
    return WorkloadNotes(
        rollout=_rollout(manifest),
        rollback=_rollback(manifest),
        startup_budget_seconds=_whole(annotation(manifest, constants.ANNOTATION_STARTUP_BUDGET)),
        spec_digest=annotation(manifest, constants.ANNOTATION_SPEC_DIGEST),
        default_image=annotation(manifest, constants.ANNOTATION_DEFAULT_IMAGE),
        origin=read_origin(annotation(manifest, constants.ANNOTATION_ORIGIN)),
    )


def is_autoscalers(workload: Manifest) -> bool:
    """Return whether the number of replicas was left to an autoscaler."""
    owner = annotation(workload, constants.ANNOTATION_REPLICAS)
    return owner == constants.REPLICAS_OF_AUTOSCALER


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _has_groups(manifest: Manifest) -> bool:
    """Return whether this is a LeaderWorkerSet: the items of a list do not say their kind."""
    return "leaderWorkerTemplate" in manifest["spec"]


def _groups_run(manifest: Manifest, pods: Sequence[PodState]) -> bool:
    """Return whether every pod of a LeaderWorkerSet exists, of its revision and ready: its
    controller's counts alone may be those of the previous spec."""
    revision = annotation(manifest, constants.ANNOTATION_REVISION)
    own = [pod for pod in pods if pod.role is not None]  # others are a Deployment's
    return len(own) == pods_wanted(manifest) and all(
        pod.ready and pod.revision == revision for pod in own
    )


def _rollback(manifest: Manifest) -> Rollback | None:
    failed = annotation(manifest, constants.ANNOTATION_FAILED_REVISION)
    cause = annotation(manifest, constants.ANNOTATION_FAILURE)
    return Rollback(failed, cause or "") if failed else None


def _rollout(manifest: Manifest) -> Rollout | None:
    """Return the strategy in effect, with our reason for it; None if we have not written one."""
    reason = annotation(manifest, constants.ANNOTATION_ROLLOUT_REASON)
    if reason is None:
        return None
    spec, asked_at = manifest["spec"], time_of(annotation(manifest, constants.ANNOTATION_ASKED_AT))
    placed = _whole(annotation(manifest, constants.ANNOTATION_HAD_PLACE))
    strategy: Mapping[str, Any] = spec.get("rolloutStrategy") or spec.get("strategy") or {}
    steps: Mapping[str, Any] = (
        strategy.get("rollingUpdate") or strategy.get("rollingUpdateConfiguration") or {}
    )
    if strategy.get("type") == "Recreate" or steps.get("maxUnavailable") == "100%":
        return Rollout(RolloutStrategy.RECREATE, reason, asked_at=asked_at, had_place=placed)
    spare, away = steps.get("maxSurge"), steps.get("maxUnavailable")
    surplus = spare if isinstance(spare, int) else 0
    if spare not in (0, "0", "0%") and away in (None, 0, "0", "0%"):
        return Rollout(RolloutStrategy.SURGE, reason, 1, asked_at, placed, max(0, surplus - 1))
    unavailable = away if isinstance(away, int) and away > 0 else 1
    return Rollout(RolloutStrategy.IN_PLACE, reason, unavailable, asked_at, placed, surplus)


def _stalled(
    deployment: Manifest, conditions: Mapping[tuple[Any, Any], Mapping[str, Any]]
) -> str | None:
    """Return the message of a rollout that does not progress. The controller keeps a missed
    deadline until the next progress, and sees a new template before it sets this condition anew: a
    deadline that was missed before this revision could be late is of the revision before."""
    condition = conditions.get(("Progressing", "False"))
    asked_at = time_of(annotation(deployment, constants.ANNOTATION_ASKED_AT))
    since = time_of(condition.get("lastUpdateTime")) if condition is not None else None
    if condition is None or asked_at is None or since is None:
        return _message(condition)
    seconds = deployment["spec"].get("progressDeadlineSeconds", _DEADLINE_SECONDS)
    earliest = asked_at + timedelta(seconds=seconds) / 2  # half: the clocks are two machines'
    is_older = condition.get("reason") == _DEADLINE_MISSED and since < earliest
    return None if is_older else _message(condition)


def _message(condition: Mapping[str, Any] | None) -> str | None:
    return f"{condition.get('reason')}: {condition.get('message')}" if condition else None
