"""ClusterLife: the in-memory cluster one long step at a time, for tests that choose who acts when.

Between two steps nobody acts but the test and its operator; in a step minutes pass, and everybody
does what is due.
"""

from __future__ import annotations

from typing import Any

from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, POD, Manifest
from atom_operator.kinds import AUTOSCALER, REPLICA_SET
from tests.support.in_memory_cluster.autoscalers import scale
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.kubelet import BAD as BAD
from tests.support.in_memory_cluster.node_controller import sync_nodes
from tests.support.in_memory_cluster.state import is_ready as is_ready
from tests.support.operator.builders_operator import gpu_node
from tests.support.operator.fake_cluster import FakeCluster

NAME = "chat"
_KEY = ("default", NAME)
# More than a kubelet takes to start a pod again, and than silent nodes keep theirs.
_STEP_SECONDS = 310.0
_MOST_RESTARTS = 6


class ClusterLife:
    """`cluster` with `nodes` of so many devices each; without any, pods need none."""

    def __init__(self, cluster: FakeCluster, nodes: dict[str, int] | None = None) -> None:
        self.cluster, self.nodes = cluster, nodes or {}
        shown = [gpu_node(name, devices) for name, devices in self.nodes.items()]
        self.inner = InMemoryCluster(cluster, shown or [gpu_node("any", resource="example.org/x")])
        self.inner.kubelets.most_restarts = _MOST_RESTARTS
        self.state = self.inner.state

    # --- what is there -----------------------------------------------------------------------

    @property
    def deployment(self) -> Manifest | None:
        return self.cluster.objects.get((DEPLOYMENT, *_KEY))

    @property
    def pods(self) -> list[Manifest]:
        """Those that do not end."""
        return self.inner.pods

    @property
    def serving(self) -> list[Manifest]:
        """Pods that are ready and that the Service leads to."""
        return self.inner.serving(NAME)

    # --- what others do ----------------------------------------------------------------------

    def autoscale(self, replicas: int) -> None:
        """The autoscaler moves the number between its bounds, and owns it from then on."""
        self.state.load[NAME] = float(replicas)
        scaler, stored = self.cluster.objects.get((AUTOSCALER, *_KEY)), self.deployment
        if scaler is None or stored is None or not stored["spec"]["replicas"]:
            return
        bounds = scaler["spec"]
        number = min(max(replicas, bounds["minReplicas"]), bounds["maxReplicas"])
        scale(self.state, stored, number)

    def limit_by_a_queue(self, pods: int | None) -> None:
        """So many pods are admitted; the others wait behind a gate."""
        self.state.queue = pods

    def lose_node(self, name: str) -> None:
        """Its pods serve no more; with the next step they are replaced."""
        self.inner.lose_node(name)
        sync_nodes(self.state)

    def return_node(self, name: str) -> None:
        if name in self.nodes:
            self.inner.return_node(name)
            sync_nodes(self.state)

    def delete(self, kind: Any) -> None:
        """Somebody deletes a child; of a workload the pods go too."""
        self.cluster.objects.pop((kind, *_KEY), None)
        if kind == DEPLOYMENT:
            for owned in (REPLICA_SET, POD):
                for item in self.state.all(owned):
                    self.state.remove(owned, item)

    def step(self) -> None:
        """Minutes pass."""
        self.inner.advance(_STEP_SECONDS)


def parent_of(cluster: FakeCluster) -> Manifest:
    """The AtomDeployment itself."""
    return cluster.find(ATOM_DEPLOYMENT, NAME)
