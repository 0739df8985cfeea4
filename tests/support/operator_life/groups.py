"""Who is in a group with a pod, by the names and roles that its pods have."""

from __future__ import annotations

from atom_operator import constants
from atom_operator.domain import POD, Manifest
from tests.support.in_memory_cluster.state import ClusterState


def leader_of(pod: Manifest) -> str | None:
    """The leader of the pod's group; None for a pod that is alone."""
    labels, name = pod["metadata"].get("labels") or {}, str(pod["metadata"]["name"])
    role = labels.get(constants.LABEL_ROLE)
    if role is None:
        return None
    return name if role == constants.ROLE_LEADER else name.rpartition("-")[0]


def group_of(state: ClusterState, pod: Manifest) -> list[Manifest]:
    """The pod and those of its group that are there, the ones that end included."""
    leader = leader_of(pod)
    others = [] if leader is None else state.all(POD)
    return [pod, *(one for one in others if leader_of(one) == leader and one is not pod)]
