"""Reads PersistentVolumeClaims and their volumes, each once in a pass.

Several questions of one decision are about the same claims: whether replicas can share them, on
which nodes their volumes are, and who else mounts them. One reader belongs to one pass, so that the
next pass sees what has changed. Called by the Decider's stages.
"""

from __future__ import annotations

from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import VOLUME, VOLUME_CLAIM, Kind, Manifest


class ClaimReader:
    """Keeps every answer; a failed request is made again."""

    def __init__(self, port: ClusterPort) -> None:
        self._port = port
        self._found: dict[tuple[Kind, str, str], Manifest | None] = {}

    async def claim(self, namespace: str, name: str) -> Manifest | None:
        """Return the claim, None if it does not exist. Raises ClusterError."""
        return await self._get(VOLUME_CLAIM, namespace, name)

    async def volume(self, name: str) -> Manifest | None:
        """Return the PersistentVolume, None if it does not exist. Raises ClusterError."""
        return await self._get(VOLUME, "", name)

    async def _get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        place = (kind, namespace, name)
        if place not in self._found:
            self._found[place] = await self._port.get(kind, namespace, name)
        return self._found[place]
