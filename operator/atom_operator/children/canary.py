"""The AtomDeployment of a canary, owned by the one that asks for it. Pure.

It is one like any other, so that its pods, Service, claims, quota, profile and status are what
every AtomDeployment has; only the HTTPRoute is the owner's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from atom_operator import constants
from atom_operator.children import naming
from atom_operator.domain import Identity, Manifest
from atom_operator.domain.canary import Canary


def canary_deployment(identity: Identity, canary: Canary) -> Manifest | None:
    """Render the canary's own AtomDeployment; None if it has none (any more)."""
    if canary.spec is None:
        return None
    digest = {constants.ANNOTATION_SPEC_DIGEST: content_digest(canary.spec)}
    return {
        "apiVersion": constants.API_VERSION,
        "kind": constants.KIND,
        "metadata": naming.metadata(identity, canary.name, digest),
        "spec": dict(canary.spec),
    }


def content_digest(content: Mapping[str, Any]) -> str:
    """Digest a spec or a part of one: equal for equal content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
