"""Reads from a pod the facts of conditions: ready, node, problem, or the reason of its end. Pure.

Knows how the kubelet, the scheduler and the controllers of nodes and quotas report things, and no
policy. A pod that has ended (evicted, refused by its kubelet, completed) serves nothing, holds
nothing and is read for its last message alone. Called by observe.py and jobs.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from atom_operator import constants
from atom_operator.domain import EndedPod, LeavingPod, Manifest, PodState
from atom_operator.domain.observed import PodDevices, PodHealth, PodMarks, PodPlacement
from atom_operator.domain.resources import Resources, quota_usage, requests_of
from atom_operator.pods.accelerator_names import accelerator_asked

_MESSAGE_LIMIT = 300
_INTEGER = re.compile(r"^-?[0-9]{1,10}$")
# A waiting container that will start by itself is no problem.
_HARMLESS_WAITING = ("ContainerCreating", "PodInitializing")
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"  # Kueue's, on pods that it counts
_ENDED = ("Failed", "Succeeded")
_SCHEDULED = "PodScheduled"
# No node takes the pod, or the scheduler's work for it on a fitting node failed, such as binding a
# claim.
_NO_NODE = ("Unschedulable", "SchedulerError")
# The kubelet reports a pod that it takes as not ready, within moments.
_FIRST_REPORT = timedelta(seconds=15)


def has_ended(manifest: Manifest) -> bool:
    """Return whether the pod is over: no controller counts it, and it holds nothing of its node."""
    return (manifest.get("status") or {}).get("phase") in _ENDED


def fell_with_its_group(manifest: Manifest) -> bool:
    """Return whether the pod failed and is to go: the controller of groups deletes a group within
    moments of a restart, and with it the only words about the failure."""
    if (manifest["metadata"].get("labels") or {}).get(constants.LABEL_ROLE) is None:
        return False
    if not manifest["metadata"].get("deletionTimestamp"):
        return False
    return _first_problem(manifest.get("status") or {}) is not None


def ended_pod(manifest: Manifest) -> EndedPod:
    """Describe why and when a pod ended, in the words of the kubelet or controller that ended
    it."""
    return EndedPod(
        name=manifest["metadata"]["name"],
        message=_end(manifest),
        at=_ended_at(manifest),
        revision=annotation(manifest, constants.ANNOTATION_REVISION),
    )


def _end(manifest: Manifest) -> str:
    status: Mapping[str, Any] = manifest.get("status") or {}
    said = _said(status)
    problem = _first_problem(status)
    if said and problem and _is_vague(status):
        return f"{said}; {problem}"
    return said or problem or ""


def _said(status: Mapping[str, Any]) -> str:
    """Return the pod's own reason and message, which the kubelet or a controller of nodes writes;
    of one whose containers ended well in the grace that they were given only a condition has
    them."""
    conditions = status.get("conditions") or ()
    disrupted: Mapping[str, Any] = next(
        (item for item in conditions if item["type"] == "DisruptionTarget"), {}
    )
    by = disrupted if disrupted.get("status") == "True" and not status.get("reason") else status
    reason, message = by.get("reason"), str(by.get("message") or "").strip()
    return ": ".join(str(text) for text in (reason, message[:_MESSAGE_LIMIT]) if text)


def _is_vague(status: Mapping[str, Any]) -> bool:
    return not status.get("message")


def _ended_at(manifest: Manifest) -> datetime | None:
    """Return when the last container ended, or when the kubelet reported on a pod without
    containers."""
    status: Mapping[str, Any] = manifest.get("status") or {}
    ends = [time_of((_ending(item) or {}).get("finishedAt")) for item in _containers(status)]
    told = [time_of(item.get("lastTransitionTime")) for item in status.get("conditions") or ()]
    known = [time for time in ends if time] or [time for time in told if time]
    return max(known, default=time_of(status.get("startTime")) or created_at(manifest))


def pod_state(manifest: Manifest) -> PodState:
    """Read one pod's state, with the first problem of its containers."""
    status: Mapping[str, Any] = manifest.get("status") or {}
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    scheduled = conditions.get(_SCHEDULED, {})
    containers = _containers(status)
    ready = conditions.get("Ready", {})
    lost = status.get("phase") == "Unknown"  # its kubelet is silent: its last report is old
    role = (manifest["metadata"].get("labels") or {}).get(constants.LABEL_ROLE)
    spec: Mapping[str, Any] = manifest.get("spec") or {}
    return PodState(
        name=manifest["metadata"]["name"],
        ready=ready.get("status") == "True" and not lost,
        uid=str(manifest["metadata"].get("uid") or ""),
        role=role,
        revision=annotation(manifest, constants.ANNOTATION_REVISION),
        created_at=created_at(manifest),
        address=status.get("podIP") or None if role != constants.ROLE_WORKER and not lost else None,
        health=PodHealth(
            problem=(_said(status) if lost else None) or _first_problem(status),
            restarts=max((item.get("restartCount", 0) for item in containers), default=0),
            ready_since=time_of(ready.get("lastTransitionTime"))
            if ready.get("status") == "True"
            else None,
            was_ready=_was_ready(status, ready),
        ),
        placement=_placement(manifest, scheduled),
        devices=PodDevices(accelerator_asked(spec), _sick_devices(status)),
        marks=PodMarks(
            deletion_cost=_deletion_cost(manifest),
            adapters=_adapters(manifest),
            adapters_digest=annotation(manifest, constants.ANNOTATION_ADAPTERS),
        ),
    )


def _placement(manifest: Manifest, scheduled: Mapping[str, Any]) -> PodPlacement:
    spec: Mapping[str, Any] = manifest.get("spec") or {}
    return PodPlacement(
        scheduled=scheduled.get("status") == "True",
        unschedulable_message=_without_node(manifest, scheduled),
        node=spec.get("nodeName"),
        gated=bool(_gates(manifest)),
        priority=spec.get("priority") or 0,
        requests=_requests(manifest, scheduled),
        charged=quota_usage(spec),
    )


def _adapters(manifest: Manifest) -> tuple[str, ...]:
    """List the adapters that a pod's labels name."""
    prefix = constants.LABEL_ADAPTER_PREFIX
    labels = manifest["metadata"].get("labels") or {}
    return tuple(sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix)))


def _sick_devices(status: Mapping[str, Any]) -> tuple[str, ...]:
    """List the devices of the pod that its kubelet calls unhealthy (KEP 4680), each with its
    resource."""
    return tuple(
        f"{given.get('name')} {device.get('resourceID')}"
        for container in _containers(status)
        for given in container.get("allocatedResourcesStatus") or ()
        for device in given.get("resources") or ()
        if device.get("health") == "Unhealthy"
    )


def _deletion_cost(manifest: Manifest) -> int:
    """Read the cost that a pod carries; a word that is no number counts as 0."""
    text = annotation(manifest, constants.ANNOTATION_DELETION_COST) or ""
    return int(text) if _INTEGER.match(text) else 0


def _requests(manifest: Manifest, scheduled: Mapping[str, Any]) -> Resources | None:
    """Read the requests of a pod that no node has room for: admission may have made them more than
    we asked for."""
    if scheduled.get("reason") != "Unschedulable":
        return None
    return requests_of(manifest.get("spec") or {})


def has_begun(manifest: Manifest) -> bool:
    """Return whether a container of the pod was ever started, or the kubelet reports an
    obstacle."""
    return any(
        "waiting" not in (item.get("state") or {"waiting": None})
        or item.get("restartCount")
        or (item["state"]["waiting"] or {}).get("reason") not in (None, *_HARMLESS_WAITING)
        for item in _containers(manifest.get("status") or {})
    )


def placed_at(manifest: Manifest) -> datetime | None:
    """Return when the pod got its node."""
    conditions = (manifest.get("status") or {}).get("conditions") or ()
    times = [item.get("lastTransitionTime") for item in conditions if item["type"] == _SCHEDULED]
    return time_of(times[0]) if times else None


def leaving_pod(manifest: Manifest) -> LeavingPod:
    """Describe an ending pod for those that wait for its place."""
    node = (manifest.get("spec") or {}).get("nodeName")
    return LeavingPod(manifest["metadata"]["name"], node, _charged_until(manifest["metadata"]))


def _charged_until(metadata: Mapping[str, Any]) -> datetime | None:
    """Return until when a ResourceQuota counts an ending pod; None: until it has gone. One that
    stays for twice its grace is on a lost node, and is counted no more."""
    ends, grace = time_of(metadata.get("deletionTimestamp")), "deletionGracePeriodSeconds"
    if ends is None or metadata.get(grace) is None:
        return None
    return ends + timedelta(seconds=metadata[grace])  # the grace is in `ends` already, once


def annotation(manifest: Manifest, name: str) -> str | None:
    """Return an annotation's value, or None."""
    return (manifest["metadata"].get("annotations") or {}).get(name)


def created_at(manifest: Manifest) -> datetime | None:
    """Return when the API server took the object."""
    return time_of(manifest["metadata"].get("creationTimestamp"))


def _was_ready(status: Mapping[str, Any], ready: Mapping[str, Any]) -> bool:
    """Return whether a pod that is not ready has been so before."""
    since, began = time_of(ready.get("lastTransitionTime")), time_of(status.get("startTime"))
    if ready.get("status") != "False" or since is None or began is None:
        return False
    return since - began > _FIRST_REPORT


def _containers(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]


def _first_problem(status: Mapping[str, Any]) -> str | None:
    problems = (container_problem(container) for container in _containers(status))
    return next((problem for problem in problems if problem), None)


def _without_node(pod: Manifest, scheduled: Mapping[str, Any]) -> str | None:
    """Return why a pod has no node: the scheduler's words, or who keeps it from being looked at."""
    if scheduled.get("reason") in _NO_NODE:
        return str(scheduled.get("message"))
    gates = _gates(pod)
    if not gates:
        return None
    queue = (pod["metadata"].get("labels") or {}).get(_QUEUE_LABEL)
    where = f"in the queue {queue}, " if queue else ""
    return f"{where}held back by the scheduling gate {', '.join(gates)}"


def _gates(pod: Manifest) -> list[str]:
    """Return the scheduling gates; a controller of quotas, such as Kueue, removes its gate when it
    admits the pod."""
    return [gate["name"] for gate in (pod.get("spec") or {}).get("schedulingGates") or ()]


def time_of(text: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def last_words(manifest: Manifest) -> str:
    """Return how a pod's container ended or why it waits, or why it has no node; empty if it is
    fine."""
    if has_ended(manifest):
        return _end(manifest)
    state = pod_state(manifest)
    return state.health.problem or state.placement.unschedulable_message or ""


def container_problem(status: Mapping[str, Any]) -> str | None:
    """Return why a container is not ready: how it last ended, or why it waits.

    A container that is ready has none, however often it was restarted.
    """
    name, state = status["name"], status.get("state") or {}
    if status.get("ready"):
        return None
    ended = _ending(status)
    if ended and ended.get("exitCode") != 0:
        message = _last_lines(ended.get("message") or "")
        text = f"container {name} ended: {ended.get('reason')} (exit code {ended.get('exitCode')})"
        return f"{text}: {message}" if message else text
    waiting = state.get("waiting")
    if waiting and waiting.get("reason") not in (None, *_HARMLESS_WAITING):
        message = (waiting.get("message") or "").strip()
        return f"container {name} waits: {waiting['reason']}: {message[:_MESSAGE_LIMIT]}"
    return None


def _ending(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return how a container ended, now or before it was started again."""
    for state in (status.get("state") or {}, status.get("lastState") or {}):
        if state.get("terminated"):
            return dict(state["terminated"])
    return None


def _last_lines(log: str) -> str:
    """Return the end of a log, which has the reason, in whole lines if one line fits."""
    text = ""
    for line in reversed(log.strip().splitlines()):
        longer = f"{line.strip()} | {text}" if text else line.strip()
        if text and len(longer) > _MESSAGE_LIMIT:
            break
        text = longer
    return text[-_MESSAGE_LIMIT:]
