"""What keeps pods and Jobs waiting, in the words of whoever refuses; which of it is not told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from atom_operator.domain import EVENT, JOB, POD, Manifest
from atom_operator.kinds import REPLICA_SET
from tests.support.in_memory_cluster.kinds import STATEFUL_SET
from tests.support.in_memory_cluster.state import condition_of, is_ready, is_terminal

if TYPE_CHECKING:
    from tests.support.operator_life.life import Life

_TAINT = re.compile(r"untolerated taint \{([^:}]+)")
# Of the node controller, which the operator tells as "not ready".
_NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_INSUFFICIENT = re.compile(r"Insufficient ([\w./-]+\w)")
_SAID_OTHERWISE = {
    "node(s) were unschedulable": ("cordoned",),
    "didn't match Pod's node affinity": ("its device id is not labelled",),
    "Too many pods": ("pods",),
    "didn't match pod topology spread constraints": ("topologySpreadConstraints",),
    "didn't match pod affinity rules": ("required pod affinity",),
    "anti-affinity rules": ("anti-affinity",),
    "volume node affinity conflict": ("the volume of claim",),
    "cannot allocate all claims": ("deviceclass.resource.kubernetes.io/",),
}


def untold(life: Life, said: str, seconds: float) -> Iterator[str]:
    """The causes of waits that last for so long and of which `said` tells nothing."""
    for pod in life.pods:
        waits = life.state.seconds_since(pod["metadata"]["creationTimestamp"])
        if waits >= seconds and not is_ready(pod):
            yield from _of_pod(life, pod, said)
    yield from _of_silent_nodes(life, said, seconds)
    for kind in (REPLICA_SET, STATEFUL_SET, JOB):
        for item in life.state.all(kind):
            yield from _of_refusals(life, item, said, seconds)


def _of_pod(life: Life, pod: Manifest, said: str) -> Iterator[str]:
    name = pod["metadata"]["name"]
    scheduled = condition_of(pod, "PodScheduled") or {}
    if scheduled.get("reason") == "Unschedulable":
        words = scheduled["message"]
        if words not in said and not _is_said_otherwise(words, said):
            yield f"{name}: {words}"
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        waiting = container["state"].get("waiting") or {}
        words = waiting.get("message", "")
        ended = (container.get("lastState") or {}).get("terminated") or {}
        known = ended.get("message") or words
        if known and known[:60] not in said:
            yield f"{name}: {known}"
    if pod["spec"].get("nodeName") in life.state.lost:
        return  # whatever an Event said before, its node is the cause by now
    for event in life.state.all(EVENT):
        about = event.get("involvedObject") or {}
        unclaimed = event.get("reason") == "FailedResourceClaimCreation" and not scheduled
        refused = event["message"].partition(" is forbidden: ")[2]
        if unclaimed and about.get("uid") == pod["metadata"]["uid"] and refused not in said:
            yield f"{name}: {event['message']}"
        attaches = event.get("reason") == "FailedAttachVolume" and _has_not_begun(pod)
        if attaches and about.get("uid") == pod["metadata"]["uid"] and "Multi-Attach" not in said:
            yield f"{name}: {event['message']}"


def _of_silent_nodes(life: Life, said: str, seconds: float) -> Iterator[str]:
    """Replicas that are missing because nobody hears of the node of one that served."""
    workload = life.workload or {"spec": {"replicas": 0}}
    if len(life.cluster.serving(life.name)) >= workload["spec"].get("replicas", 1):
        return
    for pod in filter(life.is_own, life.state.all(POD)):
        node, since = pod["spec"].get("nodeName"), _silent_since(life, pod)
        if life.state.seconds_since(since) >= seconds and f"node {node} has not" not in said:
            yield f"{pod['metadata']['name']}: node {node} is silent"


def _silent_since(life: Life, pod: Manifest) -> str | None:
    """Since when a pod does not serve because its node is silent; None of others, and of one that
    never was ready and goes. A fault that its kubelet found before excuses nothing."""
    node = pod["spec"].get("nodeName")
    if node not in life.state.lost or is_ready(pod) or is_terminal(pod):
        return None
    found = (pod.get("status") or {}).get("containerStatuses") or ()
    ready = condition_of(pod, "Ready") or {}
    if not found or not all(item.get("ready") for item in found):
        if pod["metadata"].get("deletionTimestamp"):
            return None
        ready = condition_of(life.cluster.node(node), "Ready") or {}
    since: str | None = ready.get("lastTransitionTime")
    return since


def _has_not_begun(pod: Manifest) -> bool:
    """Whether its volumes are still waited for: an Event stays for an hour, also when they were
    attached long ago, and a kubelet pulls images once they are."""
    status = pod.get("status") or {}
    waits = (
        (item["state"].get("waiting") or {}).get("reason", "ContainerCreating")
        for item in status.get("containerStatuses") or ()
    )
    return status.get("phase", "Pending") == "Pending" and set(waits) <= {"ContainerCreating"}


def _is_said_otherwise(words: str, said: str) -> bool:
    """The operator's own account of the nodes names what lacks and what blocks."""
    lacking = _INSUFFICIENT.findall(words)
    if lacking:
        return any(resource in said for resource in lacking)
    taints = _TAINT.findall(words)
    if any(("not ready" if t in _NOT_READY else f"taint {t}") in said for t in taints):
        return True
    return any(
        theirs in words and any(word in said for word in ours)
        for theirs, ours in _SAID_OTHERWISE.items()
    )


def _of_refusals(life: Life, item: Manifest, said: str, seconds: float) -> Iterator[str]:
    """Pods that the API server does not take, which only their controller's Events tell."""
    spec, status = item["spec"], item.get("status") or {}
    if item["kind"] == JOB.kind:
        lacks = not status.get("active") and not status.get("conditions")
    else:
        lacks = spec["replicas"] > status.get("replicas", 0)
    if not lacks or _goes_with_its_leader(life, item):
        return
    for event in life.state.all(EVENT):
        about = event.get("involvedObject") or {}
        if about.get("uid") != item["metadata"].get("uid") or event["reason"] != "FailedCreate":
            continue
        lasts = life.state.seconds_since(event["firstTimestamp"]) >= seconds
        fresh = life.state.seconds_since(event["lastTimestamp"]) < 60
        words = event["message"].partition(" is forbidden: ")[2] or event["message"][-60:]
        if lasts and fresh and _without_numbers(words) not in _without_numbers(said):
            yield f"{item['kind']} {item['metadata']['name']}: {event['message']}"


def _goes_with_its_leader(life: Life, item: Manifest) -> bool:
    """The StatefulSet of a leader that ends makes no pods: none of them waits for anything."""
    owners = {owner["uid"] for owner in item["metadata"].get("ownerReferences") or ()}
    return any(
        pod["metadata"]["uid"] in owners and pod["metadata"].get("deletionTimestamp")
        for pod in life.state.all(POD)
    )


def _without_numbers(words: str) -> str:
    """What is used of a quota changes while a message stands."""
    return re.sub(r"used: [^ ]*", "used", words)
