"""Why an AtomDeployment is not ready: all causes that the cluster reports, root causes first. Pure.

Reads what kubectl can read: conditions, pods, quotas and the Events of all objects between the
AtomDeployment and its containers. No cause is judged again; each keeps the words of the component
that refused it, and gets the user's next step (why_remedies.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any

from atom_operator.domain import Manifest
from atom_operator.plugin.why_remedies import remedy
from atom_operator.pods.events import event_time
from atom_operator.pods.pod_state import ended_pod, has_ended, pod_state
from atom_operator.pods.silent_node import silence_of, silent_pod

Object = Mapping[str, Any]
# An Event is gone an hour later at the latest; one that does not recur is over.
_STILL = timedelta(minutes=15)
_CONTROLLERS = ("LeaderWorkerSet", "Deployment", "StatefulSet", "ReplicaSet", "Job")


class Rank(IntEnum):
    """Rank causes, root causes first: a lower one cannot be resolved before a higher one."""

    SPEC = 0  # not accepted, or does not fit
    REFUSED = 1  # objects or pods that the API server refuses
    NO_NODE = 2
    NOT_STARTED = 3  # volumes, images, configuration
    FAILED = 4  # containers that end, pods that ended
    NOT_READY = 5  # it runs and does not serve yet
    FOLLOWS = 6  # reports of the operator and controllers about all that


@dataclass(frozen=True, slots=True)
class Cause:
    """Describe one obstacle in the words of its source."""

    rank: Rank
    about: str  # kind/name
    reason: str
    message: str
    since: datetime | None = None
    count: int = 1
    next_steps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """Hold the objects read from the cluster for one AtomDeployment."""

    parent: Object
    objects: Sequence[Object] = ()  # controllers, pods and Jobs with their kinds
    events: Sequence[Object] = ()
    quotas: Sequence[Object] = ()
    now: datetime = field(default_factory=lambda: datetime.now().astimezone())


_OF_EVENTS: Mapping[str, Rank] = {
    "FailedCreate": Rank.REFUSED,
    "FailedScheduling": Rank.NO_NODE,
    "FailedMount": Rank.NOT_STARTED,
    "FailedAttachVolume": Rank.NOT_STARTED,
    "FailedBinding": Rank.NOT_STARTED,
    "ProvisioningFailed": Rank.NOT_STARTED,
    "FailedCreatePodSandBox": Rank.NOT_STARTED,
    "Failed": Rank.NOT_STARTED,
    "InspectFailed": Rank.NOT_STARTED,
    "Evicted": Rank.FAILED,
    "UnexpectedAdmissionError": Rank.FAILED,
    "Preempted": Rank.FAILED,
    "OOMKilling": Rank.FAILED,
    "BackoffLimitExceeded": Rank.FAILED,
    "DeadlineExceeded": Rank.FAILED,
    "BackOff": Rank.FAILED,
    "Unhealthy": Rank.NOT_READY,
}
_OF_CONDITIONS = (
    "Accepted",
    "CapacityFits",
    "Scheduled",
    "ModelLoaded",
    "IntegrationsReady",
    "AdaptersReady",
    "DevicesHealthy",
    "Progressing",
    "Degraded",
    "CapacityLimited",
    "SloMet",
    "StepsAsPredicted",
)
_BAD_IF_TRUE = ("Degraded", "CapacityLimited")


def causes(seen: Seen) -> list[Cause]:
    """List every cause once, root causes first; empty for a healthy AtomDeployment."""
    found = [
        *_of_parent(seen.parent),
        *_of_readiness(seen.parent),
        *_of_nodes(seen.objects),
        *_of_pods(seen.objects),
        *_of_events(seen),
        *_of_controllers(seen.objects),
    ]
    if any("exceeded quota" in cause.message for cause in found):
        found += _of_quotas(seen.quotas)
    told: dict[tuple[str, str], Cause] = {}
    for cause in sorted(found, key=_order):
        told.setdefault((cause.about, cause.message), cause)
    return [_with_next(cause, seen.parent["metadata"]) for cause in _without_echoes(told.values())]


def _order(cause: Cause) -> tuple[Rank, bool, str, str]:
    """Return the sort key of a cause; a quota follows the refusals that it explains."""
    is_quota = cause.about.startswith("ResourceQuota/")
    return cause.rank, is_quota, cause.about, cause.reason


def is_ready(parent: Object) -> bool:
    """Return whether the AtomDeployment's latest generation is Ready."""
    condition = _condition(parent, "Ready")
    seen = (parent.get("status") or {}).get("observedGeneration")
    return condition.get("status") == "True" and seen == parent["metadata"].get("generation")


def is_suspended(parent: Object) -> bool:
    """Return whether the AtomDeployment is not ready only because its spec suspends it."""
    return _condition(parent, "Ready").get("reason") == "Suspended"


def _condition(parent: Object, kind: str) -> Object:
    conditions = (parent.get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item["type"] == kind), {})


def _of_parent(parent: Object) -> Iterator[Cause]:
    name = f"AtomDeployment/{parent['metadata']['name']}"
    if not (parent.get("status") or {}).get("conditions"):
        words = "no operator has looked at it yet"
        yield Cause(Rank.SPEC, name, "NotSeen", words)
        return
    for kind in _OF_CONDITIONS:
        item = _condition(parent, kind)
        bad = "True" if kind in _BAD_IF_TRUE else "False"
        if item.get("status") != bad or item.get("reason") in ("Complete", "NoPods"):
            continue
        rank = Rank.SPEC if kind in ("Accepted", "CapacityFits") else Rank.FOLLOWS
        yield Cause(rank, name, f"{kind}={bad} {item['reason']}", item["message"], _since(item))


def _of_readiness(parent: Object) -> Iterator[Cause]:
    """Yield the Ready condition if no rollout is running, since no other condition may report it;
    before it, a spec that changed after the operator's last look."""
    name, ready = f"AtomDeployment/{parent['metadata']['name']}", _condition(parent, "Ready")
    if not ready:
        return
    if (parent.get("status") or {}).get("observedGeneration") != parent["metadata"].get(
        "generation"
    ):
        words = "no operator has looked at its latest spec yet"
        yield Cause(Rank.SPEC, name, "NotSeen", words)
    on_its_way = _condition(parent, "Progressing").get("status") == "True"
    if ready["status"] == "False" and not on_its_way and not is_suspended(parent):
        reason = f"Ready=False {ready['reason']}"
        yield Cause(Rank.FOLLOWS, name, reason, ready["message"], _since(ready))


def _since(item: Object) -> datetime | None:
    return event_time({"lastTimestamp": item.get("lastTransitionTime")})


def _of_nodes(objects: Iterable[Object]) -> Iterator[Cause]:
    """Name the nodes that pods of ours are on and that report no more."""
    pods = (dict(item) for item in objects if item.get("kind") == "Pod")
    silent = [found for found in map(silent_pod, pods) if found is not None]
    for node in sorted({pod.node for pod in silent}):
        since = min((pod.since for pod in silent if pod.node == node and pod.since), default=None)
        words = silence_of(node, silent)
        yield Cause(Rank.FAILED, f"Node/{node}", "NodeSilent", words, since)


def _of_pods(objects: Iterable[Object]) -> Iterator[Cause]:
    for pod in objects:
        if pod.get("kind") != "Pod" or pod["metadata"].get("deletionTimestamp"):
            continue
        yield from _of_pod(dict(pod))


def _of_pod(pod: Manifest) -> Iterator[Cause]:
    about = f"Pod/{pod['metadata']['name']}"
    if has_ended(pod):
        ended = ended_pod(pod)
        if (pod.get("status") or {}).get("phase") == "Failed":
            yield Cause(Rank.FAILED, about, "Ended", ended.message, ended.at)
        return
    state = pod_state(pod)
    if state.placement.unschedulable_message is not None:
        words = state.placement.unschedulable_message
        yield Cause(Rank.NO_NODE, about, "Unschedulable", words, state.created_at)
    elif state.health.problem is not None:
        waits = (
            " waits: " in state.health.problem and "CrashLoopBackOff" not in state.health.problem
        )
        rank = Rank.NOT_STARTED if waits else Rank.FAILED
        yield Cause(
            rank,
            about,
            "ContainerNotReady",
            state.health.problem,
            None,
            max(1, state.health.restarts),
        )


def _of_events(seen: Seen) -> Iterator[Cause]:
    """Yield the warnings that still come about objects that are still there, the newest of each
    sort."""
    known = {(item.get("kind"), item["metadata"]["name"]) for item in seen.objects}
    done = {(item.get("kind"), item["metadata"]["name"]) for item in seen.objects if _is_well(item)}
    newest: dict[tuple[str, str, str], tuple[datetime, Object]] = {}
    for event in seen.events:
        about, time = event.get("involvedObject") or {}, event_time(event)
        kind, name, reason = about.get("kind"), about.get("name"), event.get("reason")
        if event.get("type") != "Warning" or reason not in _OF_EVENTS or time is None:
            continue
        if (kind, name) not in known or (kind, name) in done or seen.now - time > _STILL:
            continue
        key = (str(kind), str(name), str(reason))
        if key not in newest or newest[key][0] < time:
            newest[key] = (time, event)
    for (kind, name, reason), (time, event) in newest.items():
        words = str(event.get("message") or "").removeprefix("Error creating: ").strip()
        count = int(event.get("count") or (event.get("series") or {}).get("count") or 1)
        yield Cause(_OF_EVENTS[reason], f"{kind}/{name}", reason, words, time, count)


def _is_well(item: Object) -> bool:
    """Return whether the complaint about a pod or a claim is over."""
    if item.get("kind") == "PersistentVolumeClaim":
        return bool((item.get("status") or {}).get("phase") == "Bound")
    return item.get("kind") == "Pod" and pod_state(dict(item)).ready


def _of_controllers(objects: Iterable[Object]) -> Iterator[Cause]:
    for item in objects:
        if item.get("kind") not in _CONTROLLERS:
            continue
        about = f"{item['kind']}/{item['metadata']['name']}"
        for condition in (item.get("status") or {}).get("conditions") or ():
            kind, status = condition.get("type"), condition.get("status")
            reason, words = str(condition.get("reason")), str(condition.get("message"))
            if (kind, status) == ("ReplicaFailure", "True"):
                yield Cause(Rank.REFUSED, about, reason, words, _since(condition))
            elif (kind, status) in (("Progressing", "False"), ("Failed", "True")):
                yield Cause(Rank.FOLLOWS, about, reason, words, _since(condition))


def _of_quotas(quotas: Iterable[Object]) -> Iterator[Cause]:
    for quota in quotas:
        status = quota.get("status") or {}
        hard, used = status.get("hard") or {}, status.get("used") or {}
        rows = [f"{name} {used.get(name, '0')} of {hard[name]}" for name in sorted(hard)]
        about = f"ResourceQuota/{quota['metadata']['name']}"
        yield Cause(Rank.REFUSED, about, "Used", ", ".join(rows))


def _without_echoes(found: Iterable[Cause]) -> Iterator[Cause]:
    """Drop causes that only repeat the words of an earlier one."""
    said: list[str] = []
    for cause in found:
        core = _core(cause.message)
        if any(core in before for before in said):
            continue
        said.append(core)
        yield cause


def _core(words: str) -> str:
    """Return a message without the name of the refused pod, which each try generates again."""
    return words.partition("forbidden: ")[2] or words


def _with_next(cause: Cause, owner: Object) -> Cause:
    words = f"{cause.reason}: {cause.message}"
    steps = remedy(cause.about, words, str(owner["name"]), str(owner.get("namespace")))
    return Cause(
        cause.rank, cause.about, cause.reason, cause.message, cause.since, cause.count, steps
    )
