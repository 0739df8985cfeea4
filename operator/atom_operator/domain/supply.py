"""Devices on nodes, as far as the pods of one AtomDeployment are concerned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeSupply:
    """Devices of one resource on one node, as far as one AtomDeployment's pods are concerned."""

    name: str
    allocatable: int
    requested: int  # by every pod on the node, ours included
    ours: int  # pods of this AtomDeployment there that a rollout would replace
    held: int = 0  # devices of all its pods there, of whatever revision, those that end included
    placed: int = 0  # its pods there that do not end
    blockers: tuple[str, ...] = ()  # why no pod of ours may go there, whatever is free
    unhealthy: int = 0  # devices that the node has and no pod is given

    @property
    def free(self) -> int:
        return max(0, self.allocatable - self.requested)


@dataclass(frozen=True, slots=True)
class Supply:
    """Where `demand` devices of `resource` for one pod could come from."""

    resource: str
    demand: int
    nodes: tuple[NodeSupply, ...]
    released: int = 0  # devices that one running pod of ours gives back when it goes
    stuck: int = 0  # pods of ours that are to end on nodes that are lost or take no pod
    pods_per_replica: int = 1
