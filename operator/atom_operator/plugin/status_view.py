"""`kubectl atom status`: one AtomDeployment as a tree. Pure: objects in, lines out.

Shows only the API server's data; all judgements are the operator's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from atom_operator.plugin.ages import age

Object = Mapping[str, Any]
_MARKS = {"True": "+", "False": "-", "Unknown": "?"}
# Conditions whose good state is False.
NEGATIVE = ("Degraded", "CapacityLimited", "Stalled")
# Neither state of these is better than the other.
NEUTRAL = ("Progressing", "CanaryProgressing", "Suspended", "Reconciling")
_EVENTS = 8


def status_lines(
    parent: Object,
    children: Sequence[Object],
    events: Sequence[Object],
    drafts: str = "",
    *,
    now: datetime | None = None,
) -> Iterator[str]:
    """Yield the tree, its most important line first; drafts: their acceptance, in words. `now`: the
    reference of events' ages."""
    metadata, status = parent["metadata"], parent.get("status") or {}
    yield f"AtomDeployment {metadata['namespace']}/{metadata['name']}{_stale(parent)}"
    yield from _branch("summary", list(_summary(parent, drafts)))
    yield from _branch("capacity", list(_capacity(status.get("capacity") or {})))
    if status.get("adapters"):
        yield from _branch("adapters", list(_adapters(status["adapters"])))
    if status.get("canary"):
        yield from _branch("canary", [_canary(status["canary"])])
    yield from _branch("conditions", list(_conditions(status.get("conditions") or ())))
    yield from _branch("objects", list(_objects(children)))
    yield from _branch("events", list(_events(events, now)), last=True)


def _stale(parent: Object) -> str:
    seen = (parent.get("status") or {}).get("observedGeneration")
    if seen == parent["metadata"].get("generation"):
        return ""
    return "  (the operator has not looked at this spec yet)"


def _branch(title: str, rows: list[str], *, last: bool = False) -> Iterator[str]:
    if not rows:
        rows = ["none"]
    yield f"{'└─' if last else '├─'} {title}"
    stem = "   " if last else "│  "
    for number, row in enumerate(rows, start=1):
        yield f"{stem}{'└─' if number == len(rows) else '├─'} {row}"


def _summary(parent: Object, drafts: str) -> Iterator[str]:
    status, spec = parent.get("status") or {}, parent.get("spec") or {}
    ready = _condition(status, "Ready")
    yield f"ready     {ready.get('status', 'Unknown')}, {ready.get('reason', 'NotSeen')}"
    back = f", suspended: {spec.get('replicas', 1)} to come back" if spec.get("suspend") else ""
    yield f"replicas  {status.get('readyReplicas', 0)} ready of {status.get('replicas', 0)}{back}"
    yield f"model     {(spec.get('model') or {}).get('source', '')}"
    if status.get("url"):
        yield f"url       {status['url']}"
    if drafts:
        yield f"drafts    {drafts}"
    rollout = status.get("rollout")
    # The last rollout's course is irrelevant now.
    if rollout and _condition(status, "Progressing").get("reason") != "Complete":
        yield f"rollout   {rollout['strategy']}: {rollout['reason']}"


def _condition(status: Object, kind: str) -> Object:
    found = (item for item in status.get("conditions") or () if item["type"] == kind)
    return next(found, {})


def _capacity(capacity: Object) -> Iterator[str]:
    if not capacity:
        return
    actual = capacity.get("actual")
    yield f"{capacity['confidence'].lower()}  {_numbers(capacity)}"
    if actual:
        drift = actual.get("driftPercent")
        off = f", {drift:+d}% off the plan" if drift is not None else ""
        yield f"measured   {_numbers(actual)}{off}"
    shown = actual or capacity
    for row in shown.get("concurrency") or ():
        yield f"{row['sequences']:>6,} sequences of {row['contextTokens']:,} tokens"


def _numbers(capacity: Object) -> str:
    return f"{capacity['kvTokens']:,} tokens of KV cache in {capacity['blocks']:,} blocks"


def _adapters(adapters: Sequence[Object]) -> Iterator[str]:
    """Yield each adapter with the pods that serve it, and those that do not."""
    width = max(len(item["name"]) for item in adapters)
    for item in adapters:
        yield f"{item['name'].ljust(width)}  loaded on {item['loadedPods']} pods"
        for pod in item["pods"]:
            if pod["state"] != "Loaded":
                why = f": {pod['message']}" if pod.get("message") else ""
                yield f"{' ' * width}  {pod['state'].lower()} on {pod['name']}{why}"


def _canary(canary: Object) -> str:
    since = f" since {canary['since']}" if canary.get("since") else ""
    share = f"step {canary['step']}, {canary['weight']}% of the requests{since}"
    return f"{canary['name']}  {canary['phase']}, {share}"


def _conditions(conditions: Sequence[Object]) -> Iterator[str]:
    width = max((len(item["type"]) for item in conditions), default=0)
    for item in conditions:
        mark = _MARKS.get(item["status"], "?")
        if item["type"] in NEUTRAL and mark != "?":
            mark = " "
        elif item["type"] in NEGATIVE and mark != "?":
            mark = {"+": "-", "-": "+"}[mark]
        name = item["type"].ljust(width)
        yield f"{mark} {name} {item['status']:<7} {item['reason']}: {item['message']}"


def _objects(children: Sequence[Object]) -> Iterator[str]:
    pods = [item for item in children if item["kind"] == "Pod"]
    others = [item for item in children if item["kind"] != "Pod"]
    for item in sorted(others, key=lambda one: (one["kind"], one["metadata"]["name"])):
        yield f"{item['kind']}/{item['metadata']['name']}{_progress(item)}"
    for pod in sorted(pods, key=lambda one: str(one["metadata"]["name"])):
        yield f"Pod/{pod['metadata']['name']}  {_pod(pod)}"


def _progress(item: Object) -> str:
    status = item.get("status") or {}
    if item["kind"] == "Job":
        states = ("Complete", "Failed", "Suspended")
        conditions = status.get("conditions") or ()
        ended = [c["type"] for c in conditions if c["status"] == "True" and c["type"] in states]
        return f"  {', '.join(ended).lower() or 'runs'}"
    if item["kind"] in ("Deployment", "LeaderWorkerSet"):
        wanted = (item.get("spec") or {}).get("replicas", 1)
        return f"  {status.get('readyReplicas', 0)} of {wanted} ready"
    return ""


def _pod(pod: Object) -> str:
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    ready = conditions.get("Ready", {}).get("status") == "True"
    node = spec.get("nodeName")
    containers = status.get("containerStatuses") or ()
    restarts = sum(item.get("restartCount", 0) for item in containers)
    words = [status.get("phase", "Unknown"), "ready" if ready else "not ready"]
    words.append(f"on {node}" if node else "without a node")
    if restarts:
        words.append(f"{restarts} restarts")
    waiting = [
        ((item.get("state") or {}).get("waiting") or {}).get("reason") for item in containers
    ]
    words.extend(str(reason) for reason in waiting if reason)
    return ", ".join(words)


def _events(events: Sequence[Object], now: datetime | None) -> Iterator[str]:
    ordered = sorted(events, key=_when)
    for event in ordered[-_EVENTS:]:
        count = event.get("count") or 1
        times = f" (x{count})" if count > 1 else ""
        about = event["involvedObject"]
        what = "" if about["kind"] == "AtomDeployment" else f"{about['kind']}/{about['name']}: "
        time = _when(event)
        since = f"{age(time, now)} ago" if now is not None and time else time
        yield f"{since:<8} {event['type']} {event['reason']}{times}: {what}{event['message']}"


def _when(event: Object) -> str:
    return str(
        event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or ""
    )


def status_document(
    parent: Object, children: Sequence[Object], events: Sequence[Object], drafts: str = ""
) -> dict[str, Any]:
    """Return the facts of the tree as -o json and yaml show them."""
    metadata = parent["metadata"]
    ordered = sorted(children, key=lambda one: (one["kind"], one["metadata"]["name"]))
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "model": ((parent.get("spec") or {}).get("model") or {}).get("source"),
        "upToDate": not _stale(parent),
        "status": dict(parent.get("status") or {}),
        "drafts": drafts or None,
        "objects": [
            {
                "kind": item["kind"],
                "name": item["metadata"]["name"],
                "state": _pod(item) if item["kind"] == "Pod" else _progress(item).strip() or None,
            }
            for item in ordered
        ],
        "events": [
            {
                "time": _when(event),
                "type": event.get("type"),
                "reason": event.get("reason"),
                "about": f"{event['involvedObject']['kind']}/{event['involvedObject']['name']}",
                "count": event.get("count") or 1,
                "message": event.get("message"),
            }
            for event in sorted(events, key=_when)
        ],
    }
