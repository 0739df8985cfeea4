"""ClusterPort: the requests that a reconcile may make to the cluster. Implemented by the client and
by a fake.

Every method raises TransientError (try again) or RefusedError (no, until something changes) from
cluster/errors.py, and no other error of the API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from atom_operator.domain import Kind, Manifest, ObjectKey


class ClusterPort(Protocol):
    """Reads are fresh; writes are idempotent."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """Return the object, or None; `namespace` is empty for cluster-scoped kinds."""

    async def get_namespace_labels(self, namespace: str) -> Mapping[str, str]:
        """Return the labels of the namespace; none if it does not exist."""

    async def list_labelled(
        self, kind: Kind, namespace: str, labels: Mapping[str, str]
    ) -> list[Manifest]:
        """Return the objects of a namespace that carry all of `labels`."""

    async def list_if_served(
        self, kind: Kind, namespace: str, labels: Mapping[str, str]
    ) -> list[Manifest] | None:
        """List objects as `list_labelled` does, of a kind that the cluster may lack; None when it
        does."""

    async def list_events(self, namespace: str, kind: str, name: str) -> list[Manifest]:
        """List the Events about one object; none where we may not read them."""

    async def list_children(self, kind: Kind, namespace: str) -> list[Manifest]:
        """List the objects of a kind in a namespace that some AtomDeployment has; none where the
        cluster does not serve the kind."""

    async def list_children_by(self, kind: Kind, term: str) -> list[Manifest]:
        """List the objects of a kind that some AtomDeployment has and that have a term
        (domain/lookup_terms.py), in all namespaces that this operator watches."""

    async def list_deployments(self) -> list[ObjectKey]:
        """List every AtomDeployment that this operator watches."""

    async def list_everywhere(self, kind: Kind) -> list[Manifest] | None:
        """List every object of a kind in the whole cluster; None where that does not serve it."""

    async def list_nodes(self) -> list[Manifest]:
        """List every node of the cluster."""

    async def list_placed_pods(self, *, others: bool = False) -> list[Manifest]:
        """List every pod of the cluster that is on a node and has not finished; `others`: except
        those of AtomDeployments that we watch."""

    async def apply(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Apply the object server-side with our field manager, forced; return it as it is now."""

    async def make(self, kind: Kind, manifest: Manifest) -> None:
        """Create an object. Raises `AlreadyExistsError` if one of its name exists, of
        any owner."""

    async def dry_run(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Return the object that would be stored for a new one, without storing it. Raises
        RefusedError, with the API server's words, if the object cannot be stored or has a field
        that the server does not know."""

    async def hand_over_replicas(
        self, kind: Kind, namespace: str, name: str, replicas: int
    ) -> None:
        """Make another field manager own spec.replicas too, at the value that it has.

        A manager that stops applying a field removes it, unless another owns it: without this the
        number would fall to the API's default. TransientError when the value is another one.
        """

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Replace the object of this name, including other managers' fields. Raises TransientError
        if its resourceVersion is not that of `manifest`."""

    async def delete(self, kind: Kind, namespace: str, name: str) -> bool:
        """Delete in the background, and return whether the object is gone; a finalizer delays
        that."""

    async def evict(self, namespace: str, name: str, uid: str) -> str | None:
        """Evict the pod of this uid. Returns the refusal of a disruption budget, or of the request
        itself; None if the pod ends or is gone."""

    async def apply_status(self, key: ObjectKey, status: Mapping[str, Any]) -> Manifest | None:
        """Apply an AtomDeployment's status server-side; return the answer, None if it is gone."""

    async def apply_profile_status(self, name: str, status: Mapping[str, Any]) -> Manifest | None:
        """Apply an AtomProfile's status server-side; return the answer, None if it is gone."""
