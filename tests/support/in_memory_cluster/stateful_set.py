"""StatefulSets, as LeaderWorkerSet uses them: pods by number, made anew where one ended or is of
another template, all at once or from the last one down."""

from __future__ import annotations

from atom_operator.cluster.errors import RefusedError
from atom_operator.domain import POD, Manifest
from tests.support.in_memory_cluster.admission import create_pod
from tests.support.in_memory_cluster.kinds import STATEFUL_SET
from tests.support.in_memory_cluster.state import ClusterState, is_ready, is_terminal
from tests.support.operator.merged_fields import copied

REVISION_LABEL = "controller-revision-hash"
INDEX_LABEL = "apps.kubernetes.io/pod-index"
_RETRY_SECONDS = 15.0


def sync_stateful_sets(state: ClusterState) -> None:
    for item in state.all(STATEFUL_SET):
        _sync(state, item)


def pods_by_number(state: ClusterState, item: Manifest) -> dict[int, Manifest]:
    """The pods that there are, those that end included."""
    return {int(pod["metadata"]["labels"][INDEX_LABEL]): pod for pod in state.owned(POD, item)}


def _sync(state: ClusterState, item: Manifest) -> None:
    spec = item["spec"]
    first = (spec.get("ordinals") or {}).get("start", 0)
    wanted = range(first, first + spec["replicas"])
    pods = pods_by_number(state, item)
    for number, pod in pods.items():
        if number not in wanted or is_terminal(pod):
            state.delete_pod(pod)
    for number in wanted if state.may_try(item) else ():
        if number not in pods and not _make(state, item, number):
            break
    _report(state, item)


def _make(state: ClusterState, item: Manifest, number: int) -> bool:
    template = copied(item["spec"]["template"])
    metadata = {**template["metadata"], "name": f"{item['metadata']['name']}-{number}"}
    metadata["namespace"] = item["metadata"]["namespace"]
    metadata["labels"] = {
        **(metadata.get("labels") or {}),
        INDEX_LABEL: str(number),
        REVISION_LABEL: item["spec"]["revision"],
    }
    try:
        create_pod(state, {"metadata": metadata, "spec": template["spec"]}, item)
    except RefusedError as error:
        name = item["metadata"]["name"]
        words = f"create Pod {metadata['name']} in StatefulSet {name} failed error: {error}"
        state.record(item, "FailedCreate", words)
        state.try_again(item, _RETRY_SECONDS)
        return False
    return True


def _report(state: ClusterState, item: Manifest) -> None:
    pods = state.owned(POD, item)
    status = {
        "replicas": len(pods),
        "readyReplicas": sum(map(is_ready, pods)),
        "observedGeneration": item["metadata"]["generation"],
    }
    state.set_status(item, status)
