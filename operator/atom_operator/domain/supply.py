"""Supply of nodes for the pods of one AtomDeployment, resource by resource."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atom_operator.domain.resources import Resources


@dataclass(frozen=True, slots=True)
class Amount:
    """Hold the amounts of one resource of one node."""

    allocatable: int | None  # None: the node does not report it, so it is not judged
    requested: int = 0  # by every pod on the node, ours included
    held: int = 0  # by pods of ours there, of whatever revision, those that end included

    @property
    def free(self) -> int | None:
        """Return the amount that no pod has requested; None if it is not judged."""
        rest = self.free_after(0)
        return None if rest is None else max(0, rest)

    def free_after(self, given_back: int) -> int | None:
        """Return the free amount after pods give `given_back` back. Negative if pods hold devices
        that have become unhealthy, which do not come free."""
        return None if self.allocatable is None else self.allocatable - self.requested + given_back


_NOTHING = Amount(0)


@dataclass(frozen=True, slots=True)
class NodeSupply:
    """Hold one node's supply, as far as one AtomDeployment's pods are concerned."""

    name: str
    amounts: Mapping[str, Amount]  # of every resource that a pod needs, and of the device
    resource: str | None  # the device's; None where pods need none
    # What each pod of this AtomDeployment there that a rollout would replace gives back.
    replaced: tuple[Resources, ...] = ()
    placed: int = 0  # its pods there that do not end
    blockers: tuple[str, ...] = ()  # why no pod of ours may go there, whatever is free
    unhealthy: int = 0  # devices that the node has and no pod is given
    # The rule by which pods of this AtomDeployment keep a spare one off, until some of them go.
    own_rule: str | None = None
    rule_holders: int = 0  # old pods that have to go for that, at least; 0: the rule stays

    @property
    def ours(self) -> int:
        """Return the number of pods of this AtomDeployment there that a rollout would replace."""
        return len(self.replaced)

    @property
    def device(self) -> Amount:
        """Return the device's amount; nothing where pods need none."""
        return self.amounts.get(self.resource or "", _NOTHING)

    @property
    def allocatable(self) -> int:
        """Return the number of devices that pods may be given."""
        return self.device.allocatable or 0

    @property
    def requested(self) -> int:
        """Return the number of devices that pods have."""
        return self.device.requested

    @property
    def free(self) -> int:
        """Return the number of devices that no pod has."""
        return self.device.free or 0


@dataclass(frozen=True, slots=True)
class Supply:
    """Hold the nodes' supply for one pod's needs (`demand`). `resource` is the device's, None if
    pods need none."""

    resource: str | None
    demand: Resources
    nodes: tuple[NodeSupply, ...]
    stuck: int = 0  # pods of ours that are to end on nodes that are lost or take no pod
    lost: frozenset[str] = frozenset()  # nodes that report no more: their ending pods stay
    arrived: int = 0  # pods of ours of the wanted revision that have a node and stay
    pods_per_replica: int = 1
    lacking: str | None = None  # why no node has the device at all
    node_autoscaler: str | None = None  # that adds nodes for Pending pods, if any

    @property
    def devices(self) -> int:
        """Return the number of devices that one pod needs."""
        return self.demand.get(self.resource or "", 0)
