"""What self-made certificates live in: a Secret, and the webhook's configuration.

`TrustPort` is what the certificate keeper may ask of the cluster; its lightkube twin is below. A
write of the Secret that meets a newer one raises TransientError (409) and changes nothing, so
replicas that renew at the same time agree on one result.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.types import PatchType

from atom_operator import constants
from atom_operator.cluster.client import translated
from atom_operator.webhook.certificates import CertificateSet, KeyPair

_SECRET = create_namespaced_resource("", "v1", "Secret", "secrets")
_CONFIGURATION = create_global_resource(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
)
_NOT_FOUND = 404
_KEYS = ("ca.crt", "ca.key", "trusted.crt", "tls.crt", "tls.key")


@dataclass(frozen=True, slots=True)
class StoredSet:
    """The Secret: `version` is its resourceVersion; `content` None where it holds no full set."""

    version: str
    content: CertificateSet | None


class TrustPort(Protocol):
    """Raises ClusterError and nothing else that belongs to the API."""

    async def read_set(self) -> StoredSet | None:
        """The Secret, None when there is none."""

    async def write_set(self, content: CertificateSet, before: StoredSet | None) -> None:
        """Create the Secret, or put `content` in place of `before`."""

    async def trust(self, authorities: bytes) -> bool:
        """Make the API servers trust these; False when they did already."""


class LightkubeTrust:
    """Secret `namespace`/`secret`, and the ValidatingWebhookConfiguration `configuration`."""

    @classmethod
    def connect(cls, namespace: str, secret: str, configuration: str) -> LightkubeTrust:
        """From the pod's service account or the kubeconfig of the environment."""
        return cls(
            AsyncClient(field_manager=constants.FIELD_MANAGER), namespace, secret, configuration
        )

    def __init__(
        self, client: AsyncClient, namespace: str, secret: str, configuration: str
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._secret = secret
        self._configuration = configuration

    async def read_set(self) -> StoredSet | None:
        with translated(f"get Secret {self._namespace}/{self._secret}"):
            try:
                found = await self._client.get(_SECRET, self._secret, namespace=self._namespace)
            except ApiError as error:
                if error.response.status_code == _NOT_FOUND:
                    return None
                raise
        return stored_set(dict(found))

    async def write_set(self, content: CertificateSet, before: StoredSet | None) -> None:
        metadata: dict[str, Any] = {"name": self._secret, "namespace": self._namespace}
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "type": "Opaque",
            "data": secret_data(content),
        }
        with translated(f"write Secret {self._namespace}/{self._secret}"):
            if before is None:
                metadata["labels"] = {constants.LABEL_PART_OF: "atom-platform"}
                await self._client.create(_SECRET.from_dict(manifest))
                return
            # A patch, because the labels are the chart's.
            metadata["resourceVersion"] = before.version
            await self._client.patch(
                _SECRET,
                self._secret,
                {"metadata": {"resourceVersion": before.version}, "data": manifest["data"]},
                namespace=self._namespace,
                patch_type=PatchType.MERGE,
            )

    async def trust(self, authorities: bytes) -> bool:
        bundle = base64.b64encode(authorities).decode()
        with translated(f"read the webhook configuration {self._configuration}"):
            found = dict(await self._client.get(_CONFIGURATION, self._configuration))
        hooks: list[Mapping[str, Any]] = found.get("webhooks") or []
        stale = [hook["name"] for hook in hooks if hook["clientConfig"].get("caBundle") != bundle]
        if not stale:
            return False
        patch = {"webhooks": [{"name": n, "clientConfig": {"caBundle": bundle}} for n in stale]}
        with translated(f"write the webhook configuration {self._configuration}"):
            await self._client.patch(
                _CONFIGURATION, self._configuration, patch, patch_type=PatchType.STRATEGIC
            )
        return True

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def secret_data(content: CertificateSet) -> dict[str, str]:
    """data of the Secret."""
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
    """The typed view of the Secret; a freshly installed one is empty."""
    data: Mapping[str, str] = manifest.get("data") or {}
    version = str(manifest["metadata"].get("resourceVersion") or "")
    if not all(data.get(name) for name in _KEYS):
        return StoredSet(version, None)
    ca, ca_key, trusted, serving, serving_key = (base64.b64decode(data[name]) for name in _KEYS)
    content = CertificateSet(KeyPair(ca, ca_key), trusted, KeyPair(serving, serving_key))
    return StoredSet(version, content)
