"""The record of the last pods that were all ready: the target of a rollback. Pure.

A ControllerRevision, as StatefulSets keep their history: its data never changes, so every revision
is a separate object, and only the newest is kept. Users who may not read pods may not read it.
"""

from __future__ import annotations

from atom_operator import constants
from atom_operator.children import naming
from atom_operator.domain import CONTROLLER_REVISION, Identity, Manifest, PodRevision


def ready_revision(identity: Identity, pods: PodRevision) -> Manifest:
    """Render the object that remembers `pods`."""
    annotations = {constants.ANNOTATION_REVISION: pods.name}
    if pods.spec_digest is not None:
        annotations[constants.ANNOTATION_SPEC_DIGEST] = pods.spec_digest
    return {
        "apiVersion": CONTROLLER_REVISION.api_version,
        "kind": CONTROLLER_REVISION.kind,
        "metadata": naming.metadata(identity, f"{identity.key.name}-{pods.name}", annotations),
        "revision": 1,
        "data": {"template": pods.template, "nodes": pods.nodes},
    }
