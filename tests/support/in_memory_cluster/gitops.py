"""A GitOps tool: keeps AtomDeployments as they are in Git, by server-side apply with its own field
manager, and puts back what somebody changed of what it owns."""

from __future__ import annotations

from dataclasses import dataclass, field

from atom_operator.domain import ATOM_DEPLOYMENT, Manifest
from tests.support.in_memory_cluster.state import ClusterState

MANAGER = "argocd-controller"


@dataclass
class GitOps:
    """`wanted` is what is in Git; nothing is touched while it is empty."""

    state: ClusterState
    wanted: list[Manifest] = field(default_factory=list)

    def sync(self) -> None:
        for manifest in self.wanted:
            metadata = manifest["metadata"]
            key = (ATOM_DEPLOYMENT, metadata.get("namespace", "default"), metadata["name"])
            self.state.api.apply_as(MANAGER, key, manifest)
