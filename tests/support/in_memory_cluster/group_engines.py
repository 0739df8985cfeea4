"""Engines of a group are ranks of one collective: none serves before all of them run, and one that
has begun ends when another is gone.

Kubelets know a group by what LeaderWorkerSet writes on its pods; no controller is asked.
"""

from __future__ import annotations

from atom_operator.domain import POD, Manifest
from tests.support.in_memory_cluster.state import ClusterState

WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
SIZE = "leaderworkerset.sigs.k8s.io/size"


def missing_rank(state: ClusterState, pod: Manifest) -> str | None:
    """The worker that a leader does without; None for any other pod."""
    metadata = pod["metadata"]
    if (metadata.get("labels") or {}).get(WORKER_INDEX) != "0":
        return None
    for number in range(1, int(metadata["annotations"][SIZE])):
        name = f"{metadata['name']}-{number}"
        worker = state.api.objects.get((POD, metadata["namespace"], name))
        if worker is None or not _runs(state, worker):
            return name
    return None


def _runs(state: ClusterState, pod: Manifest) -> bool:
    if pod["metadata"].get("deletionTimestamp") or pod["spec"].get("nodeName") in state.lost:
        return False
    return (pod.get("status") or {}).get("phase") == "Running"
