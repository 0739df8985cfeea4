"""A queue that admits so many pods, as Kueue does: the others keep a scheduling gate, and no
scheduler looks at them."""

from __future__ import annotations

from atom_operator.domain import POD, Manifest
from tests.support.in_memory_cluster.state import ClusterState, active, with_condition

_GATE = {"name": "kueue.x-k8s.io/admission"}


def gate(state: ClusterState, pod: Manifest) -> None:
    """What its webhook does to a new pod."""
    if state.queue is not None:
        pod["spec"]["schedulingGates"] = [_GATE]


def sync_queue(state: ClusterState) -> None:
    pods = active(state.all(POD))
    admitted = sum(not pod["spec"].get("schedulingGates") for pod in pods)
    for pod in pods:
        if not pod["spec"].get("schedulingGates"):
            continue
        if state.queue is None or admitted < state.queue:
            del pod["spec"]["schedulingGates"]
            admitted += 1
            found = {"type": "PodScheduled", "status": "False", "lastTransitionTime": state.stamp()}
            pod["status"] = with_condition(pod["status"], found)
            state.api.touch(pod)
