"""A rollout's end in a FakeCluster, for tests that reconcile by hand between moments.

The cluster's own controllers, scheduler and kubelets act until nothing changes, so pods come from
the workload's template, one ReplicaSet takes over from another by the strategy that is written, and
the Deployment tells what its controller tells. Nothing takes time here: engines load at once. Jobs
and autoscalers stay as they are: these tests play them themselves.
"""

from __future__ import annotations

from datetime import datetime

from atom_operator.constants import ANNOTATION_REVISION, LABEL_DEPLOYMENT
from atom_operator.domain import DEPLOYMENT, POD, Manifest
from atom_operator.kinds import REPLICA_SET
from tests.support.in_memory_cluster.deployment_controller import newest_pods, sync_deployments
from tests.support.in_memory_cluster.kubelet import Kubelets
from tests.support.in_memory_cluster.replica_set import sync_replica_sets
from tests.support.in_memory_cluster.scheduler import schedule
from tests.support.in_memory_cluster.state import (
    START,
    ClusterState,
    controller_of,
    is_ready,
    reference_to,
)
from tests.support.operator.fake_cluster import FakeCluster

_MOST_ROUNDS = 60
# Where pods go in a test without nodes; the operator is not told of it.
_SOMEWHERE: Manifest = {"metadata": {"name": "somewhere"}, "spec": {}, "status": {}}


def finish_rollout(
    cluster: FakeCluster,
    name: str = "chat",
    *,
    ready: int | None = None,
    namespace: str = "default",
    now: datetime = START,
) -> None:
    """Let pods come and go until nothing changes; of the Deployment's newest pods `ready` answer,
    the oldest ones, or all. What others' and older pods do stays as it was, and pods that the test
    put there itself are what it says they are."""
    state = ClusterState(cluster, time=(now - START).total_seconds(), names=int(cluster.version()))
    kubelets = Kubelets(state, load_seconds=0.0, end_seconds=0.0)

    def answers(pod: Manifest) -> bool:
        workload = cluster.find(DEPLOYMENT, name, namespace)
        newest = newest_pods(state, workload)
        if pod not in newest:
            return is_ready(pod)
        told = [item for item in newest if state.is_told(item)]
        made = [item for item in newest if item not in told]
        return pod in (made if ready is None else made[: max(0, ready - sum(map(is_ready, told)))])

    kubelets.answers = answers
    nodes, clock = cluster.nodes, cluster.clock
    cluster.nodes, cluster.clock = nodes or [_SOMEWHERE], state.now
    try:
        for _ in range(_MOST_ROUNDS):
            before = _versions(cluster)
            sync_deployments(state)
            _adopt(state)
            sync_replica_sets(state)
            schedule(state)
            kubelets.sync()
            if _versions(cluster) == before:
                return
    finally:
        cluster.nodes, cluster.clock = nodes, clock
    raise AssertionError(f"it does not come to rest: {cluster.writes[-12:]}")


def _adopt(state: ClusterState) -> None:
    """Pods without a controller that are of a ReplicaSet's template are that ReplicaSet's."""
    for one in state.all(REPLICA_SET):
        template = one["spec"]["template"]["metadata"]
        for pod in state.all(POD):
            metadata = pod["metadata"]
            revision = (metadata.get("annotations") or {}).get(ANNOTATION_REVISION)
            its_own = (template.get("annotations") or {}).get(ANNOTATION_REVISION)
            same = its_own is not None and its_own == revision
            if same and controller_of(pod) is None and _is_of(metadata, one):
                metadata["labels"] = {**metadata["labels"], **template["labels"]}
                metadata["ownerReferences"] = [reference_to(one)]
                state.api.touch(pod)


def _is_of(metadata: Manifest, one: Manifest) -> bool:
    labels = one["spec"]["template"]["metadata"]["labels"]
    return metadata["namespace"] == one["metadata"]["namespace"] and (
        metadata["labels"].get(LABEL_DEPLOYMENT) == labels.get(LABEL_DEPLOYMENT)
    )


def own_pods(cluster: FakeCluster, name: str = "chat") -> list[Manifest]:
    """The stored pods of an AtomDeployment, oldest first."""
    return [
        item
        for (kind, _, _), item in cluster.objects.items()
        if kind == POD and (item["metadata"].get("labels") or {}).get(LABEL_DEPLOYMENT) == name
    ]


def _versions(cluster: FakeCluster) -> list[object]:
    return [(k, item["metadata"].get("resourceVersion")) for k, item in cluster.objects.items()]
