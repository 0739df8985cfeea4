"""PageReader: reads the data of the operator's page, at most once in some seconds for all viewers.

It only reads. Plans are made as a reconcile makes them, from the spec and the nodes, without the
engines' later measurements.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from atom_operator.cluster.errors import RefusedError
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import ATOM_DEPLOYMENT, Capacity, Manifest, ObjectKey, Owner
from atom_operator.page.overview import overview
from atom_operator.reconcile.planning import SpecLayers, Surroundings, consider
from atom_operator.reconcile.profiles.find_profile import with_profile
from atom_operator.settings import OperatorSettings

_FRESH_SECONDS = 5.0


class PageReader:
    def __init__(
        self, port: ClusterPort, settings: OperatorSettings, monotonic: Callable[[], float]
    ) -> None:
        """monotonic: a clock in seconds."""
        self._port = port
        self._settings = settings
        self._monotonic = monotonic
        self._lock = asyncio.Lock()
        self._read_at = float("-inf")
        self._document: dict[str, Any] = {}

    async def document(self) -> dict[str, Any]:
        """Return the page's document. Raises ClusterError where the API server does not answer."""
        async with self._lock:
            if self._monotonic() - self._read_at > _FRESH_SECONDS:
                self._document = await self._read()
                self._read_at = self._monotonic()
            return self._document

    async def _read(self) -> dict[str, Any]:
        nodes, pods = await self._fleet()
        found = [
            await self._port.get(ATOM_DEPLOYMENT, key.namespace, key.name)
            for key in sorted(await self._port.list_deployments())
        ]
        rows = [
            (each, await self._capacity(each, nodes or ())) for each in found if each is not None
        ]
        return overview(rows, nodes, pods)

    async def _fleet(self) -> tuple[list[Manifest] | None, list[Manifest]]:
        try:
            return await self._port.list_nodes(), await self._port.list_placed_pods()
        except RefusedError:  # it watches single namespaces
            return None, []

    async def _capacity(self, manifest: Manifest, nodes: Sequence[Manifest]) -> Capacity | None:
        metadata, settings = manifest["metadata"], self._settings
        raw = manifest.get("spec") or {}
        laid = await with_profile(self._port, metadata["namespace"], raw, settings)
        if isinstance(laid, tuple):
            return None
        owner = Owner(ObjectKey.of(manifest), "")
        around = Surroundings(
            settings.engine_images, nodes=nodes, site=settings.site, layers=SpecLayers(laid.profile)
        )
        plan = consider(owner, laid.spec, around).plan
        return None if plan is None else plan.capacity.capacity
