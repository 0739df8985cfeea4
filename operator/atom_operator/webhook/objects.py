"""Storage of self-made certificates: a Secret, and the webhook's configuration.

`TrustPort` lists the requests that the certificate keeper may make to the cluster; its
implementation with the API is below. A write of the Secret that meets a newer one raises
TransientError (409) and changes nothing, so replicas that renew at the same time agree on one
result.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from atom_operator import constants
from atom_operator.cluster.api_connection import MERGE, STRATEGIC, ApiConnection, object_path
from atom_operator.cluster.errors import NotFoundError, doing
from atom_operator.kinds import Kind
from atom_operator.webhook.certificates import CertificateSet, KeyPair

_SECRET = Kind("", "v1", "Secret", "secrets")
_CONFIGURATION = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
)
_WRITTEN = {"fieldManager": constants.FIELD_MANAGER}
_KEYS = ("ca.crt", "ca.key", "trusted.crt", "tls.crt", "tls.key")


@dataclass(frozen=True, slots=True)
class StoredSet:
    """Hold the Secret: `version` is its resourceVersion; `content` None if it holds no full set."""

    version: str
    content: CertificateSet | None


class TrustPort(Protocol):
    """Raises ClusterError and nothing else that belongs to the API."""

    async def read_set(self) -> StoredSet | None:
        """Return the Secret, or None."""

    async def write_set(self, content: CertificateSet, before: StoredSet | None) -> None:
        """Create the Secret, or put `content` in place of `before`."""

    async def trust(self, authorities: bytes) -> bool:
        """Make the API servers trust these; False when they did already."""


class ApiTrust:
    """Secret `namespace`/`secret`, and the ValidatingWebhookConfiguration `configuration`."""

    @classmethod
    def connect(cls, namespace: str, secret: str, configuration: str) -> ApiTrust:
        """Connect by the pod's service account or the kubeconfig of the environment."""
        return cls(ApiConnection.from_environment(), namespace, secret, configuration)

    def __init__(
        self, connection: ApiConnection, namespace: str, secret: str, configuration: str
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self._secret = secret
        self._configuration = configuration

    async def read_set(self) -> StoredSet | None:
        path = object_path(_SECRET, self._namespace, self._secret)
        with doing(f"get Secret {self._namespace}/{self._secret}"):
            try:
                return stored_set(await self._connection.request("GET", path))
            except NotFoundError:
                return None

    async def write_set(self, content: CertificateSet, before: StoredSet | None) -> None:
        with doing(f"write Secret {self._namespace}/{self._secret}"):
            if before is None:
                await self._connection.request(
                    "POST",
                    object_path(_SECRET, self._namespace),
                    query=_WRITTEN,
                    body=self._new_secret(content),
                )
                return
            # A patch, because the labels are the chart's.
            await self._connection.request(
                "PATCH",
                object_path(_SECRET, self._namespace, self._secret),
                query=_WRITTEN,
                body={
                    "metadata": {"resourceVersion": before.version},
                    "data": secret_data(content),
                },
                content=MERGE,
            )

    async def trust(self, authorities: bytes) -> bool:
        bundle = base64.b64encode(authorities).decode()
        path = object_path(_CONFIGURATION, None, self._configuration)
        with doing(f"read the webhook configuration {self._configuration}"):
            found = await self._connection.request("GET", path)
        hooks: list[Mapping[str, Any]] = found.get("webhooks") or []
        stale = [hook["name"] for hook in hooks if hook["clientConfig"].get("caBundle") != bundle]
        if not stale:
            return False
        patch = {"webhooks": [{"name": n, "clientConfig": {"caBundle": bundle}} for n in stale]}
        with doing(f"write the webhook configuration {self._configuration}"):
            await self._connection.request(
                "PATCH", path, query=_WRITTEN, body=patch, content=STRATEGIC
            )
        return True

    def _new_secret(self, content: CertificateSet) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": self._secret,
                "namespace": self._namespace,
                "labels": {constants.LABEL_PART_OF: "atom-platform"},
            },
            "type": "Opaque",
            "data": secret_data(content),
        }

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()


def secret_data(content: CertificateSet) -> dict[str, str]:
    """Render the data of the Secret."""
    values = (
        content.ca.certificate,
        content.ca.key,
        content.trusted,
        content.serving.certificate,
        content.serving.key,
    )
    pairs = zip(_KEYS, values, strict=True)
    return {name: base64.b64encode(value).decode() for name, value in pairs}


def stored_set(manifest: Mapping[str, Any]) -> StoredSet:
    """Return the typed view of the Secret; a freshly installed one is empty."""
    data: Mapping[str, str] = manifest.get("data") or {}
    version = str(manifest["metadata"].get("resourceVersion") or "")
    if not all(data.get(name) for name in _KEYS):
        return StoredSet(version, None)
    ca, ca_key, trusted, serving, serving_key = (base64.b64decode(data[name]) for name in _KEYS)
    content = CertificateSet(KeyPair(ca, ca_key), trusted, KeyPair(serving, serving_key))
    return StoredSet(version, content)
