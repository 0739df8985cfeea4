"""What AtomDeployments of a fleet have beside their pods: a claim each, and a route that a Gateway
takes up.

Claims are bound to volumes that are made with them, so no provisioner is needed. No proxy runs: one
watch reports every route as accepted, as a Gateway's controller would. Called by operator_scale.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import yaml

from atom_operator.cluster.api_connection import ApiConnection, object_path
from atom_operator.cluster.errors import ClusterError
from atom_operator.cluster.informer import Scope
from atom_operator.cluster.watch_client import ApiWatch
from atom_operator.domain import Manifest
from atom_operator.kinds import HTTP_ROUTE
from devcluster.api import APPLY, MERGE, Api, ApiError
from devcluster.programs.upstream_crds import ensure_upstream_crds
from devcluster.settings import Settings

LABEL = "devcluster.atom.dev/simulated-volume"
GATEWAY = "scale"
_CRDS = ("gateways", "httproutes")
_VOLUMES = "/api/v1/persistentvolumes"
_SERVED_SECONDS = 30.0
_WATCH_SECONDS = 600.0
_AT_ONCE = 4  # creations


@contextlib.contextmanager
def route_crds_installed(settings: Settings, api: Api) -> Iterator[None]:
    """Install the CRDs of the Gateway API; those that were not there are removed again."""
    folder, made = ensure_upstream_crds(settings), []
    for plural in _CRDS:
        name = f"{plural}.{HTTP_ROUTE.group}"
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
        if api.find(path) is not None:
            continue
        text = (folder / f"{HTTP_ROUTE.group}_{plural}.yaml").read_text(encoding="utf-8")
        query = "?fieldManager=operator-scale&force=true"
        api.request("PATCH", path + query, yaml.safe_load(text), APPLY)
        made.append(path)
    deadline = time.monotonic() + _SERVED_SECONDS
    while api.find(object_path(HTTP_ROUTE, None)) is None and time.monotonic() < deadline:
        time.sleep(0.2)  # between two looks at the API server
    try:
        yield
    finally:
        for path in made:
            api.request("DELETE", path)


def remove_volumes(api: Api) -> None:
    """Remove the volumes of all runs; a claim that still exists delays the end of its volume."""
    with contextlib.suppress(ApiError):
        api.request("DELETE", f"{_VOLUMES}?labelSelector={LABEL}")


def fields(name: str) -> dict[str, Any]:
    """Fields of a spec that ask for the claim and the route of an AtomDeployment."""
    route = {"parentRefs": [{"name": GATEWAY}], "hostnames": [f"{name}.scale.test"]}
    return {"cache": {"compile": {"claim": name}}, "gateway": {"httpRoute": route}}


class Beside:
    """Makes claims and answers routes in one namespace."""

    def __init__(self, connection: ApiConnection, namespace: str) -> None:
        self._connection, self._namespace = connection, namespace

    async def make_claims(self, names: list[str]) -> None:
        """Make a claim with its volume for each name, a few at a time."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(name: str) -> None:
            async with gate:
                volume, claim = _bound(name, self._namespace)
                await self._connection.request("POST", _VOLUMES, body=volume)
                path = f"/api/v1/namespaces/{self._namespace}/persistentvolumeclaims"
                await self._connection.request("POST", path, body=claim)

        await asyncio.gather(*(one(name) for name in names))

    async def answer_routes(self) -> None:
        """Report each route as accepted, for as long as this runs."""
        watch = ApiWatch(self._connection, lambda _verb, _kind: None)
        scope = Scope(HTTP_ROUTE, self._namespace, "")
        while True:
            try:
                listing = await watch.list_scope(scope)
                for item in listing.items:
                    await self._answer(item.manifest())
                async with watch.watch_scope(scope, listing.version, _WATCH_SECONDS) as changes:
                    async for change in changes:
                        if change.item is not None and change.what != "DELETED":
                            await self._answer(change.item.manifest())
            except ClusterError:
                await asyncio.sleep(1.0)  # between two tries

    async def _answer(self, route: Manifest) -> None:
        metadata = route["metadata"]
        parents = [_accepted(each, metadata) for each in route["spec"].get("parentRefs") or ()]
        if _generations(route) == [metadata["generation"]] * len(parents):
            return
        await self._connection.request(
            "PATCH",
            object_path(HTTP_ROUTE, self._namespace, metadata["name"], "status"),
            body={"status": {"parents": parents}},
            content=MERGE,
        )


def _generations(route: Manifest) -> list[int]:
    """Return the generation of the route that each Gateway has reported on."""
    parents = (route.get("status") or {}).get("parents") or ()
    return [min(each["observedGeneration"] for each in parent["conditions"]) for parent in parents]


def _accepted(parent: Manifest, metadata: Manifest) -> Manifest:
    condition = {
        "status": "True",
        "message": "",
        "observedGeneration": metadata["generation"],
        "lastTransitionTime": metadata["creationTimestamp"],
    }
    conditions = [{"type": kind, "reason": kind, **condition} for kind in _CONTENT]
    return {"parentRef": parent, "controllerName": "scale.test/gateway", "conditions": conditions}


_CONTENT = ("Accepted", "ResolvedRefs")


def _bound(name: str, namespace: str) -> tuple[Manifest, Manifest]:
    """Return a volume, and the claim that it is for."""
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{name}", "labels": {LABEL: "true"}},
        "spec": {
            **common,
            "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": "/nonexistent"},
            "claimRef": {"namespace": namespace, "name": name},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            **common,
            "volumeName": f"{namespace}-{name}",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    return volume, claim
