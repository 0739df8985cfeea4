"""PeerSecrets: makes the Secret by which an AtomDeployment's servers know each other.

Pods that hand open answers over, and frontends that let pods compute, send it to each other (the
engine's --handover-secret-file). It is made once and never read, so the operator needs only the
right to create Secrets: an existing one, the user's own included, stays unchanged. If a user
deletes it, another one is made; engines accept the previous one for a while, so that nothing breaks
meanwhile.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from atom_operator import constants
from atom_operator.children import naming, volumes
from atom_operator.cluster.errors import AlreadyExistsError
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import Manifest, ObjectKey, Owner
from atom_operator.kinds import SECRET

# Whether somebody has deleted it is asked so often.
_BETWEEN = timedelta(minutes=10)
_SECRET_BYTES = 32


@dataclass(slots=True)
class PeerSecrets:
    """Remembers when each was there. draw: makes a secret."""

    draw: Callable[[], str] = lambda: secrets.token_hex(_SECRET_BYTES)
    _seen: dict[ObjectKey, datetime] = field(default_factory=dict)

    async def ensure(
        self, port: ClusterPort, owner: Owner, manifests: Iterable[Manifest], now: datetime
    ) -> None:
        """Make the Secret where pods of these manifests mount it. Raises `ClusterError`."""
        key = owner.key
        if not any(map(_mounts_it(key), manifests)):
            return
        seen = self._seen.get(key)
        if seen is not None and now - seen < _BETWEEN:
            return
        with contextlib.suppress(AlreadyExistsError):
            await port.make(SECRET, peer_secret(owner, self.draw()))
        self._seen[key] = now

    def forget(self, key: ObjectKey) -> None:
        """Forget an AtomDeployment that is gone."""
        self._seen.pop(key, None)


def peer_secret(owner: Owner, text: str) -> Manifest:
    """Render the Secret."""
    reference = {
        "apiVersion": constants.API_VERSION,
        "kind": constants.KIND,
        "name": owner.key.name,
        "uid": owner.uid,
    }
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {
            "name": naming.peers_name(owner.key),
            "namespace": owner.key.namespace,
            "labels": naming.child_labels(owner.key.name),
            "ownerReferences": [reference],
        },
        "type": "Opaque",
        "stringData": {volumes.PEER_SECRET_KEY: text},
    }


def _mounts_it(key: ObjectKey) -> Callable[[Manifest], bool]:
    name = naming.peers_name(key)

    def mounts(manifest: Manifest) -> bool:
        spec = manifest.get("spec") or {}
        group = spec.get("leaderWorkerTemplate") or {}
        templates = (spec.get("template"), group.get("leaderTemplate"), group.get("workerTemplate"))
        return any(
            (volume.get("secret") or {}).get("secretName") == name
            for template in templates
            for volume in ((template or {}).get("spec") or {}).get("volumes") or ()
        )

    return mounts
