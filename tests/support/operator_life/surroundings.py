"""What a life has around it beside nodes: a claim with its volume, and a Gateway with a controller.

A claim is of one zone, of one node or of one pod. The Gateway's controller answers as it is told,
about the route as it is at the moment.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom_operator.domain import VOLUME, VOLUME_CLAIM, Manifest
from atom_operator.kinds import GATEWAY, HTTP_ROUTE
from tests.support.cluster.gateways import a_gateway, says
from tests.support.in_memory_cluster.state import ClusterState

ZONE = "topology.kubernetes.io/zone"
ZONES = ("one", "two")
HUGEPAGES = "hugepages-2Mi"
_MODES = {"zone": "ReadWriteMany", "node": "ReadWriteOnce", "pod": "ReadWriteOncePod"}
_CONTENT = ("Accepted", "ResolvedRefs")


def make_claim(state: ClusterState, name: str, kind: str) -> None:
    """A bound claim; its volume is in the first zone where it is of one."""
    spec = {"accessModes": [_MODES[kind]], "volumeName": f"of-{name}"}
    state.create(VOLUME_CLAIM, {"metadata": {"name": name}, "spec": spec})
    volume: Manifest = {"metadata": {"name": f"of-{name}", "namespace": ""}, "spec": {}}
    if kind == "zone":
        expression = {"key": ZONE, "operator": "In", "values": [ZONES[0]]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        volume["spec"]["nodeAffinity"] = {"required": terms}
    state.create(VOLUME, volume)


@dataclass
class GatewayController:
    """Says of every route what it makes of it; `refused` is the condition that is False."""

    state: ClusterState
    refused: str | None = None

    def __post_init__(self) -> None:
        self.state.create(GATEWAY, a_gateway())

    @property
    def words(self) -> str:
        return f"{self.refused} is refused by the gateway of the tests"

    def sync(self) -> None:
        for route in self.state.all(HTTP_ROUTE):
            conditions = [
                says(kind, "False", "NotAllowed", self.words)
                if kind == self.refused
                else says(kind, "True", kind, "")
                for kind in _CONTENT
            ]
            parents = [
                {"parentRef": parent, "controllerName": "example.test/g", "conditions": conditions}
                for parent in route["spec"]["parentRefs"]
            ]
            self.state.set_status(route, {"parents": parents})
