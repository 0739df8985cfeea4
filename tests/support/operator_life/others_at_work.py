"""Programs of others beside the operator: what adds nodes for Pending pods, and an autoscaler that
somebody points at the workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from atom_operator.domain import DEPLOYMENT, Manifest
from tests.support.in_memory_cluster.autoscalers import scale
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.state import condition_of


@dataclass
class NodeAutoscaler:
    """Adds a node for each pod that the scheduler finds none for, some time later, as Karpenter
    and cluster-autoscaler do; `make` makes the n-th."""

    cluster: InMemoryCluster
    make: Callable[[int], Manifest]
    most: int = 8
    delay_seconds: float = 60.0
    asked: dict[str, float] = field(default_factory=dict)  # uids of Pending pods, and until when

    def look(self) -> None:
        state = self.cluster.state
        for pod in self.cluster.pods:
            uid = str(pod["metadata"]["uid"])
            if (condition_of(pod, "PodScheduled") or {}).get("reason") != "Unschedulable":
                self.asked.pop(uid, None)
                continue
            due = self.asked.setdefault(uid, state.time + self.delay_seconds)
            state.look_after(due - state.time)
            nodes = self.cluster.api.nodes or []
            if state.time >= due and len(nodes) < self.most:
                self.asked[uid] = state.time + 10 * self.delay_seconds
                self.cluster.api.nodes = [*nodes, self.make(len(nodes))]


@dataclass
class ForeignAutoscaler:
    """Writes its number into a Deployment's scale subresource every 15 seconds, whatever is there,
    as the controller of HorizontalPodAutoscalers does."""

    cluster: InMemoryCluster
    name: str
    wanted: int
    period_seconds: float = 15.0
    due: float = 0.0

    def look(self) -> None:
        state = self.cluster.state
        target = self.cluster.api.objects.get((DEPLOYMENT, "default", self.name))
        if target is None or state.time < self.due:
            return
        self.due = state.time + self.period_seconds
        state.look_after(self.period_seconds)
        if target["spec"].get("replicas") != self.wanted:
            scale(state, target, self.wanted)
