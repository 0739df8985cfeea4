"""The objects that operator_scale makes are accepted, and its Gateway answers a route once."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, VOLUME_CLAIM, ObjectKey
from atom_operator.kinds import HTTP_ROUTE
from benchmarks.fleet.claims_and_routes import Beside, _bound
from benchmarks.fleet.scale_objects import manifest
from tests.support.operator.builders_operator import gpu_node, reconciler
from tests.support.operator.fake_cluster import FakeCluster

_KEY = ObjectKey("scale", "scale-0")


class _Connection:
    """Keeps the bodies of the requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []

    async def request(self, method: str, path: str, *, body: Any, content: str = "") -> None:
        self.asked.append((method, path, body))


@pytest.mark.parametrize(("autoscaled", "routed"), list(product((False, True), repeat=2)))
async def test_what_is_made_is_accepted_and_its_route_is_taken_up(
    autoscaled: bool, routed: bool
) -> None:
    cluster, connection = FakeCluster(), _Connection()
    cluster.nodes = [gpu_node("a")]
    beside = Beside(connection, _KEY.namespace)  # type: ignore[arg-type]
    made = manifest(_KEY.name, _KEY.namespace, "first", autoscaled=autoscaled, routed=routed)
    cluster.create(ATOM_DEPLOYMENT, made)
    _, claim = _bound(_KEY.name, _KEY.namespace)
    cluster.create(VOLUME_CLAIM, claim)
    same = reconciler(cluster)
    await same.reconcile(_KEY)
    if routed:
        route = cluster.find(HTTP_ROUTE, _KEY.name, _KEY.namespace)
        route["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1}
        await beside._answer(copy.deepcopy(route))
        ((method, path, body),) = connection.asked
        assert (method, path.rpartition("/")[2]) == ("PATCH", "status")
        route["status"] = body["status"]
        await beside._answer(copy.deepcopy(route))
        assert len(connection.asked) == 1, "an answered route is left alone"
    await same.reconcile(_KEY)
    conditions = cluster.find(ATOM_DEPLOYMENT, _KEY.name, _KEY.namespace)["status"]["conditions"]
    told = {each["type"]: each for each in conditions}
    assert told["Accepted"]["status"] == "True", told["Accepted"]
    if routed:
        assert told["IntegrationsReady"]["status"] == "True", told["IntegrationsReady"]
        assert "HTTPRoute" in told["IntegrationsReady"]["message"]


async def test_claims_are_bound_to_volumes_of_their_own() -> None:
    connection = _Connection()
    await Beside(connection, "scale").make_claims(["a", "b"])  # type: ignore[arg-type]
    bodies = [body for _, _, body in connection.asked]
    volumes = {body["metadata"]["name"]: body for body in bodies if "claimRef" in body["spec"]}
    claims = [body for body in bodies if "volumeName" in body["spec"]]
    for claim in claims:
        reference = volumes[claim["spec"]["volumeName"]]["spec"]["claimRef"]
        assert reference == {"namespace": "scale", "name": claim["metadata"]["name"]}
    assert len(claims) == len(volumes) == 2
