"""ReplicaSets: as many pods as asked for, made from the template; the least useful go first.

A pod that ended is no replica and stays until somebody deletes it. A refusal of the API server is
told in the condition ReplicaFailure and in an Event, and tried again.
"""

from __future__ import annotations

from typing import Any

from atom_operator.cluster.errors import RefusedError
from atom_operator.domain import POD, Manifest
from atom_operator.kinds import REPLICA_SET
from tests.support.in_memory_cluster.admission import create_pod
from tests.support.in_memory_cluster.state import ClusterState, active, condition_of, is_ready

HASH_LABEL = "pod-template-hash"
_COST = "controller.kubernetes.io/pod-deletion-cost"
_RETRY_SECONDS = 15.0


def sync_replica_sets(state: ClusterState) -> None:
    for item in state.all(REPLICA_SET):
        _sync(state, item)


def _sync(state: ClusterState, item: Manifest) -> None:
    pods = active(state.owned(POD, item))
    missing = item["spec"]["replicas"] - len(pods)
    failure = None
    if missing > 0:
        # The end of a pod of its own makes it look at once, and so does the controller of
        # Deployments when it writes it, which hands annotations down to the newest.
        known = state.first_note(item, "pods", 0)
        ended = len(state.owned(POD, item)) < known
        is_written = state.noted(item, "written") not in (None, _written(item))
        may_try = ended or is_written or state.may_try(item)
        failure = _create(state, item, missing) if may_try else _known(item)
    for pod in sorted(pods, key=_usefulness)[: max(0, -missing)]:
        state.delete_pod(pod)
    state.note(item, "pods", len(state.owned(POD, item)))
    state.note(item, "written", _written(item))
    _report(state, item, failure)


def _written(item: Manifest) -> tuple[Any, ...]:
    """What an update of the object changes."""
    annotations = item["metadata"].get("annotations") or {}
    return item["spec"]["replicas"], tuple(sorted(annotations.items()))


def _known(item: Manifest) -> str | None:
    """The failure that was told last."""
    found = condition_of(item, "ReplicaFailure")
    return str(found["message"]) if found else None


def _create(state: ClusterState, item: Manifest, count: int) -> str | None:
    """Why a pod could not be created; the others are then not tried."""
    for _ in range(count):
        template = item["spec"]["template"]
        name = state.unused_name(item["metadata"]["name"])
        metadata = {**template["metadata"], "name": name}
        metadata["namespace"] = item["metadata"]["namespace"]
        try:
            create_pod(state, {"metadata": metadata, "spec": template["spec"]}, item)
        except RefusedError as error:
            state.record(item, "FailedCreate", f"Error creating: {error}")
            state.try_again(item, _RETRY_SECONDS)
            return str(error)
    return None


def _usefulness(pod: Manifest) -> tuple[Any, ...]:
    """Those without a node go first, then those that do not serve, then those that cost least, then
    the youngest."""
    phase = (pod.get("status") or {}).get("phase")
    serves = condition_of(pod, "Ready") or {}
    return (
        bool(pod["spec"].get("nodeName")),
        ("Pending", "Unknown", "Running").index(phase or "Pending"),
        is_ready(pod),
        int((pod["metadata"].get("annotations") or {}).get(_COST, 0)),
        [-ord(entry) for entry in serves.get("lastTransitionTime", "")],
        [-ord(entry) for entry in pod["metadata"]["name"]],
    )


def _report(state: ClusterState, item: Manifest, failure: str | None) -> None:
    pods = active(state.owned(POD, item))
    ready = sum(map(is_ready, pods))
    status: dict[str, Any] = {
        "replicas": len(pods),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "observedGeneration": item["metadata"]["generation"],
    }
    if failure is not None:
        before = condition_of(item, "ReplicaFailure")
        # Written once: the name in the message is that of the first pod that was refused.
        status["conditions"] = [before or _failure(state, failure)]
    state.set_status(item, status)


def _failure(state: ClusterState, words: str) -> Manifest:
    return {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": words,
        "lastTransitionTime": state.stamp(),
    }
