"""Many AtomDeployments in a namespace of their own: created, watched, changed, removed.

One watch tells how far the operator is with each. Called by operator_scale.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import yaml

from atom_operator import constants
from atom_operator.cluster import api_connection
from atom_operator.cluster.api_connection import ApiConnection, object_path
from atom_operator.cluster.errors import ClusterError
from atom_operator.cluster.informer import Scope
from atom_operator.cluster.watch_client import ApiWatch
from atom_operator.constants import Reason
from atom_operator.domain import ATOM_DEPLOYMENT, Manifest
from benchmarks.fleet.claims_and_routes import Beside, fields, remove_volumes
from benchmarks.fleet.simulated_nodes import TOLERATION, wait_gone
from devcluster.api import APPLY, Api, ApiError
from devcluster.settings import REPOSITORY, Settings
from tools.tiny_deployment import atom_deployment

_CRD = REPOSITORY / "crds" / "serving.atom.dev_atomdeployments.yaml"
_SERVED_SECONDS = 30.0
_WATCH_SECONDS = 600.0
_AT_ONCE = 4  # creations
_CHANGE_SECONDS = 60.0
_GONE_SECONDS = 120.0
_SCALING = {"method": "HPA", "maxReplicas": 4}  # without metrics it leaves the number alone


def manifest(
    name: str, namespace: str, note: str, *, autoscaled: bool, routed: bool
) -> dict[str, Any]:
    """One replica on one GPU; another `note` asks for other pods. routed: with a claim and a
    route."""
    small = {"cpu": "10m", "memory": "16Mi"}
    pods = {
        "metadata": {"annotations": {"note": note}},
        "spec": {
            "tolerations": [TOLERATION],
            "containers": [{"name": "engine", "resources": {"requests": small}}],
        },
    }
    return atom_deployment(
        name,
        namespace=namespace,
        engine={"image": "registry.invalid/atom:simulated"},
        accelerator={"type": "amd", "product": "MI300X"},
        rollout={"drainSeconds": 0},
        template=pods,
        **({"autoscaling": _SCALING} if autoscaled else {}),
        **(fields(name) if routed else {}),
    )


@contextlib.contextmanager
def crd_installed(api: Api) -> Iterator[None]:
    """The CRD of this checkout; removed where it was not there before."""
    crd = yaml.safe_load(_CRD.read_text(encoding="utf-8"))
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
    existed = api.find(path) is not None
    api.request("PATCH", f"{path}?fieldManager=operator-scale&force=true", crd, APPLY)
    objects = f"/apis/{constants.GROUP}/{constants.VERSION}/{constants.PLURAL}?limit=1"
    deadline = time.monotonic() + _SERVED_SECONDS
    while api.find(objects) is None and time.monotonic() < deadline:
        time.sleep(0.2)  # between two looks at the API server
    try:
        yield
    finally:
        if not existed:  # helm refuses to install over a CRD that it did not make
            api.request("DELETE", path)


def _name(number: int) -> str:
    return f"scale-{number}"


class Fleet:
    """`reconciled`, `ready` and `complete` hold what the watch has shown: name → generation, and
    names; complete: every pod is of the newest template."""

    def __init__(self, connection: ApiConnection, namespace: str) -> None:
        self.namespace = namespace
        self._autoscaled = self._routed = 0
        self._beside = Beside(connection, namespace)
        self._connection = connection
        self._reconciled: dict[str, int] = {}
        self._ready: set[str] = set()
        self._complete: set[str] = set()
        self._count = 0
        self._news = asyncio.Condition()

    @classmethod
    @contextlib.asynccontextmanager
    async def in_new_namespace(
        cls, settings: Settings, api: Api, *, routes: bool
    ) -> AsyncIterator[Fleet]:
        """Removes the namespace with everything in it, and waits until it is gone. routes: some
        AtomDeployments have one, whose Gateway answers."""
        namespace = f"operator-scale-{os.getpid()}"
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        api.request("POST", "/api/v1/namespaces", body)
        kubeconfig = str(settings.kubeconfig)
        connection = ApiConnection(lambda: api_connection.configuration_of_kubeconfig(kubeconfig))
        fleet = cls(connection, namespace)
        watching = [asyncio.create_task(fleet._watch())]
        if routes:
            watching.append(asyncio.create_task(fleet._beside.answer_routes()))
        try:
            yield fleet
        finally:
            for task in watching:
                task.cancel()
            await asyncio.wait(watching)
            await connection.close()
            path = f"/api/v1/namespaces/{namespace}"
            api.request("DELETE", path)
            # Not left to kwok: a run that failed may have failed because of it. A thousand take the
            # API server longer than one request may; what is left goes with the namespace.
            with contextlib.suppress(ApiError):
                api.request("DELETE", f"{path}/pods", {"gracePeriodSeconds": 0})
            if not await asyncio.to_thread(wait_gone, api, path, _GONE_SECONDS):
                print(f"namespace {namespace} is still going after {_GONE_SECONDS:g} s")
            remove_volumes(api)

    async def create(self, count: int, autoscaled: int, routed: int) -> None:
        """`count` AtomDeployments, a few at a time; the first `autoscaled` of them scale, and the
        first `routed` have a claim and a route."""
        self._count, self._autoscaled, self._routed = count, autoscaled, routed
        await self._beside.make_claims([_name(number) for number in range(routed)])
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(number: int) -> None:
            async with gate:
                await self._apply(number, "first")

        await asyncio.gather(*(one(number) for number in range(count)))

    async def wait_ready(self, seconds: float) -> None:
        """Wait until the status of each says Ready; raises TimeoutError."""
        async with asyncio.timeout(seconds), self._news:
            await self._news.wait_for(lambda: len(self._ready) >= self._count)

    async def wait_complete(self, seconds: float) -> None:
        """Wait until no rollout goes on any more; raises TimeoutError."""
        async with asyncio.timeout(seconds), self._news:
            await self._news.wait_for(lambda: len(self._complete) >= self._count)

    async def change(self, number: int) -> float:
        """Seconds from applying other pods to a status that is about them: children come first."""
        started = time.monotonic()
        name, generation = await self._apply(number, "second")
        async with asyncio.timeout(_CHANGE_SECONDS), self._news:
            await self._news.wait_for(lambda: self._reconciled.get(name, 0) >= generation)
        return time.monotonic() - started

    async def _apply(self, number: int, note: str) -> tuple[str, int]:
        name = _name(number)
        routed, autoscaled = number < self._routed, number < self._autoscaled
        applied = await self._connection.request(
            "PATCH",
            object_path(ATOM_DEPLOYMENT, self.namespace, name),
            query={"fieldManager": "operator-scale"},
            body=manifest(name, self.namespace, note, autoscaled=autoscaled, routed=routed),
            content=api_connection.APPLY,
        )
        return name, int(applied["metadata"]["generation"])

    async def _watch(self) -> None:
        # An API server ends the watch of a client that does not keep up.
        watch = ApiWatch(self._connection, lambda _verb, _kind: None)
        scope = Scope(ATOM_DEPLOYMENT, self.namespace, "")
        while True:
            try:
                listing = await watch.list_scope(scope)
                for item in listing.items:
                    await self._see(item.manifest())
                async with watch.watch_scope(scope, listing.version, _WATCH_SECONDS) as changes:
                    async for change in changes:
                        if change.item is not None:
                            await self._see(change.item.manifest())
            except ClusterError:
                await asyncio.sleep(1.0)  # between two tries

    async def _see(self, found: Manifest) -> None:
        name, status = found["metadata"]["name"], found.get("status") or {}
        async with self._news:
            self._reconciled[name] = int(status.get("observedGeneration") or 0)
            conditions = {each["type"]: each for each in status.get("conditions") or ()}
            if conditions.get("Ready", {}).get("status") == "True":
                self._ready.add(name)
            if conditions.get("Progressing", {}).get("reason") == Reason.COMPLETE:
                self._complete.add(name)
            else:
                self._complete.discard(name)
            self._news.notify_all()
