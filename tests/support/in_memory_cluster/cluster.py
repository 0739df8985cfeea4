"""InMemoryCluster: everything that goes on in a cluster beside the operator, on one clock.

`act` lets every controller look once; `settle` until nothing changes any more, which for real ones
takes moments; `advance` goes on to whatever is due next. Deterministic: the order is written here.
The operator is another client (`operator_client.py`), and so are people (`api`, `state`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from atom_operator.cluster.errors import RefusedError, classify
from atom_operator.constants import FRONTEND_COMPONENT, LABEL_COMPONENT
from atom_operator.domain import POD, SERVICE, Manifest
from atom_operator.kinds import Kind
from tests.support.in_memory_cluster.admission import admitted, check, update_quotas
from tests.support.in_memory_cluster.autoscalers import sync_autoscalers
from tests.support.in_memory_cluster.deployment_controller import sync_deployments
from tests.support.in_memory_cluster.devices.device_claims import publish_health, sync_claims
from tests.support.in_memory_cluster.devices.device_manager import offer_devices
from tests.support.in_memory_cluster.garbage_collector import collect
from tests.support.in_memory_cluster.gitops import GitOps
from tests.support.in_memory_cluster.job_controller import sync_jobs
from tests.support.in_memory_cluster.kubelet import Kubelets
from tests.support.in_memory_cluster.leader_worker_set import sync_leader_worker_sets
from tests.support.in_memory_cluster.node_controller import evict, sync_nodes
from tests.support.in_memory_cluster.queue import sync_queue
from tests.support.in_memory_cluster.replica_set import sync_replica_sets
from tests.support.in_memory_cluster.scheduler import schedule
from tests.support.in_memory_cluster.state import (
    ClusterState,
    SickDevices,
    active,
    is_ready,
)
from tests.support.in_memory_cluster.stateful_set import sync_stateful_sets
from tests.support.operator.fake_cluster import FakeCluster

_MOST_ROUNDS = 60  # of controllers at one moment


@contextmanager
def _told_to_clients() -> Iterator[None]:
    """Raise what a client makes of the API server's answer: an error of the server itself is tried
    again."""
    try:
        yield
    except RefusedError as error:
        raise classify(error.code, str(error)) from error


class InMemoryCluster:
    """`api` is what the operator talks to."""

    def __init__(self, api: FakeCluster | None = None, nodes: Iterable[Manifest] = ()) -> None:
        self.api = api or FakeCluster()
        self.api.nodes = [*(self.api.nodes or []), *nodes]
        self.state = ClusterState(self.api)
        self.kubelets = Kubelets(self.state)
        self.gitops = GitOps(self.state)
        self.clients: list[Callable[[], None]] = []  # who else looks in every round
        self.settled: list[Callable[[], None]] = []  # who looks when a moment is over
        self.api.clock = self.state.now
        self.api.admit = self._admit
        self.api.admit_pod = self._admit_pod
        self.api.evicts = self.evict

    def _admit(self, kind: Kind, item: Manifest) -> None:
        with _told_to_clients():
            check(self.state, kind, item)

    def _admit_pod(self, pod: Manifest) -> Manifest:
        with _told_to_clients():
            return admitted(self.state, pod)

    # --- time --------------------------------------------------------------------------------

    def act(self) -> None:
        """Every controller looks once."""
        state = self.state
        self.gitops.sync()
        collect(state)
        sync_nodes(state)
        offer_devices(state)
        publish_health(state)
        self.kubelets.sync()
        sync_jobs(state)
        sync_leader_worker_sets(state)
        sync_stateful_sets(state)
        sync_autoscalers(state)
        sync_deployments(state)
        sync_replica_sets(state)
        sync_queue(state)
        sync_claims(state)
        schedule(state)
        update_quotas(state)
        for client in self.clients:
            client()

    def settle(self) -> None:
        """Let all of them look until nobody writes; whoever fights another for ever is told."""
        for _ in range(_MOST_ROUNDS):
            before = self._versions()
            self.act()
            if self._versions() == before:
                for look in self.settled:
                    look()
                return
        raise AssertionError(f"it does not come to rest: {self.api.writes[-12:]}")

    def advance(self, seconds: float) -> None:
        """Time passes: from one thing that is due to the next."""
        end = self.state.time + seconds
        self.settle()
        while (due := self.state.next_due()) is not None and due <= end:
            self.state.time = due
            self.settle()
        self.state.time = end
        self.settle()

    def _versions(self) -> list[object]:
        objects = self.api.objects.items()
        return [(key, item["metadata"].get("resourceVersion")) for key, item in objects]

    # --- what is there -----------------------------------------------------------------------

    @property
    def pods(self) -> list[Manifest]:
        """Those that neither ended nor are to end."""
        return active(self.state.all(POD))

    def serving(self, name: str, namespace: str = "default") -> list[Manifest]:
        """Pods to which the Service of that name leads, and which answer: by a frontend as long as
        one of that leads to them."""
        found = self._behind(name, namespace)
        labels = (pod["metadata"]["labels"] for pod in found)
        if any(each.get(LABEL_COMPONENT) == FRONTEND_COMPONENT for each in labels):
            return self._behind(f"{name}-workers", namespace)
        return found

    def _behind(self, name: str, namespace: str) -> list[Manifest]:
        service = self.api.objects.get((SERVICE, namespace, name))
        if service is None:
            return []
        wanted = service["spec"]["selector"].items()
        return [
            pod
            for pod in self.pods
            if is_ready(pod)
            and pod["spec"]["nodeName"] not in self.state.lost
            and wanted <= pod["metadata"]["labels"].items()
        ]

    def node(self, name: str) -> Manifest:
        (found,) = [item for item in self.api.nodes or [] if item["metadata"]["name"] == name]
        return found

    # --- what happens ------------------------------------------------------------------------

    def lose_node(self, name: str) -> None:
        self.state.lost.add(name)

    def return_node(self, name: str) -> None:
        """It reports again, and is open again."""
        self.state.lost.discard(name)
        self.state.draining.discard(name)
        self.node(name)["spec"]["unschedulable"] = False

    def drain(self, name: str) -> None:
        self.state.draining.add(name)

    def evict(self, pod: Manifest) -> str | None:
        """The Eviction API: why a pod stays; None where it ends."""
        if evict(self.state, pod):
            return None
        return "Cannot evict pod as it would violate the pod's disruption budget."

    def make_sick(
        self, name: str, devices: int, *, told: bool, fail: bool, kept_off: str = "taint"
    ) -> None:
        """So many devices of a node, those that were given away first. `told`: by the kubelet, of
        each pod that has one; `fail`: engines on them end."""
        self.state.sick[name] = SickDevices(frozenset(range(devices)), told, fail, kept_off)

    def make_well(self, name: str) -> None:
        self.state.sick.pop(name, None)
