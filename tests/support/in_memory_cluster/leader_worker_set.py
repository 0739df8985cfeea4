"""LeaderWorkerSets (v0.7.0): a StatefulSet of leaders, and one of workers for each of them.

A group one of whose pods was restarted or is to go is made anew as a whole; a pod that has ended
says nothing to their controller, and its StatefulSet replaces it alone. A change of the template
replaces groups from the last one down, so many at a time as may be away. The status counts groups,
ready ones all pods of which are ready, and has no observedGeneration.
"""

from __future__ import annotations

from typing import Any

from atom_operator.cluster.errors import RefusedError
from atom_operator.domain import POD, Manifest
from atom_operator.kinds import LEADER_WORKER_SET
from tests.support.in_memory_cluster.admission import check
from tests.support.in_memory_cluster.group_engines import SIZE, WORKER_INDEX
from tests.support.in_memory_cluster.kinds import STATEFUL_SET
from tests.support.in_memory_cluster.state import (
    ClusterState,
    hash_of,
    is_ready,
    is_terminal,
)
from tests.support.in_memory_cluster.stateful_set import REVISION_LABEL, pods_by_number
from tests.support.operator.merged_fields import copied

_RETRY_SECONDS = 60.0
_PREFIX = "leaderworkerset.sigs.k8s.io"
_GROUP_INDEX = f"{_PREFIX}/group-index"


def sync_leader_worker_sets(state: ClusterState) -> None:
    for item in state.all(LEADER_WORKER_SET):
        _sync(state, item)


def _sync(state: ClusterState, item: Manifest) -> None:
    revision = f"{hash_of(item['spec']['leaderWorkerTemplate']):08x}"
    pods: dict[int, Manifest] = {}
    try:
        pods = pods_by_number(state, _ensure_leaders(state, item, revision))
        for number, leader in pods.items():
            leader["metadata"]["labels"][_GROUP_INDEX] = str(number)  # by its webhook
            if not leader["metadata"].get("deletionTimestamp"):
                _ensure_workers(state, item, number, leader)
    except RefusedError as error:
        state.record(item, "FailedCreate", f"Failed to create statefulset: {error}")
        state.look_after(_RETRY_SECONDS)
    groups = {number: _group(state, leader) for number, leader in pods.items()}
    for group in groups.values():
        if any(map(_is_broken, group)):
            state.delete_pod(group[0])  # the workers go with their leader
    _roll(state, item, groups, revision)
    _report(state, item, groups, revision)


def _ensure_leaders(state: ClusterState, item: Manifest, revision: str) -> Manifest:
    spec, metadata = item["spec"], item["metadata"]
    owned = state.owned(STATEFUL_SET, item)
    replicas = spec.get("replicas", 1)
    template = _leader(spec["leaderWorkerTemplate"], metadata["name"])
    if not owned:
        manifest = {
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
            "spec": {"replicas": replicas, "template": template, "revision": revision},
        }
        check(state, STATEFUL_SET, manifest)
        return state.create(STATEFUL_SET, manifest, item)
    (leaders,) = owned
    wanted = {"replicas": replicas, "template": template, "revision": revision}
    if leaders["spec"] != wanted:
        leaders["spec"] = wanted
        leaders["metadata"]["generation"] += 1
        state.api.touch(leaders)
    return leaders


def _ensure_workers(state: ClusterState, item: Manifest, number: int, leader: Manifest) -> None:
    """Workers are of their leader's template, whichever is the newest."""
    size = item["spec"]["leaderWorkerTemplate"].get("size", 1)
    if size < 2 or state.owned(STATEFUL_SET, leader):
        return
    template = _labelled(
        item["spec"]["leaderWorkerTemplate"]["workerTemplate"], item["metadata"]["name"], number
    )
    metadata = leader["metadata"]
    spec = {
        "replicas": size - 1,
        "ordinals": {"start": 1},
        "template": template,
        "revision": metadata["labels"][REVISION_LABEL],
    }
    manifest = {
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "spec": spec,
    }
    check(state, STATEFUL_SET, manifest)
    state.create(STATEFUL_SET, manifest, leader)


def _group(state: ClusterState, leader: Manifest) -> list[Manifest]:
    workers = [pod for item in state.owned(STATEFUL_SET, leader) for pod in state.owned(POD, item)]
    return [leader, *workers]


def _is_broken(pod: Manifest) -> bool:
    if pod["metadata"].get("deletionTimestamp"):
        return True
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    return not is_terminal(pod) and any(item.get("restartCount") for item in containers)


def _roll(
    state: ClusterState, item: Manifest, groups: dict[int, list[Manifest]], revision: str
) -> None:
    wanted = item["spec"].get("replicas", 1)
    steps: dict[str, Any] = (item["spec"].get("rolloutStrategy") or {}).get(
        "rollingUpdateConfiguration"
    ) or {}
    away = steps.get("maxUnavailable", 1)
    most = -(-wanted * int(str(away)[:-1]) // 100) if str(away).endswith("%") else int(away)
    size = item["spec"]["leaderWorkerTemplate"].get("size", 1)
    missing = sum(not _serves(groups.get(number, []), size) for number in range(wanted))
    for number in sorted(groups, reverse=True):
        group = groups[number]
        if _revision(group[0]) == revision or group[0]["metadata"].get("deletionTimestamp"):
            continue
        if _serves(group, size):
            if missing >= most:
                return
            missing += 1
        state.delete_pod(group[0])


def _serves(group: list[Manifest], size: int) -> bool:
    ending = any(pod["metadata"].get("deletionTimestamp") for pod in group)
    return len(group) == size and not ending and all(map(is_ready, group))


def _report(
    state: ClusterState, item: Manifest, groups: dict[int, list[Manifest]], revision: str
) -> None:
    size = item["spec"]["leaderWorkerTemplate"].get("size", 1)
    ready = sum(_serves(group, size) for group in groups.values())
    wanted = item["spec"].get("replicas", 1)
    done = ready == wanted
    status = {
        "replicas": len(groups),
        "readyReplicas": ready,
        "updatedReplicas": sum(_revision(group[0]) == revision for group in groups.values()),
        "conditions": [
            {"type": "Available", "status": str(done), "reason": "x", "message": ""},
            {"type": "Progressing", "status": str(not done), "reason": "x", "message": ""},
        ],
    }
    state.set_status(item, status)


def _revision(pod: Manifest) -> str:
    return str(pod["metadata"]["labels"][REVISION_LABEL])


def _leader(groups: Manifest, name: str) -> Manifest:
    made = _labelled(groups["leaderTemplate"], name, 0)
    made["metadata"]["labels"][WORKER_INDEX] = "0"
    annotations = made["metadata"].setdefault("annotations", {})
    annotations[SIZE] = str(groups.get("size", 1))
    return made


def _labelled(template: Manifest, name: str, group: int) -> Manifest:
    made = copied(template)
    labels = made["metadata"].setdefault("labels", {})
    labels |= {f"{_PREFIX}/name": name, _GROUP_INDEX: str(group)}
    return dict(made)
