"""The AtomDeployment of the prefill pods, owned by the one whose prompts they compute. Pure.

It is one like any other, so that its pods, Service, claims, autoscaler, budget and status are what
every AtomDeployment has; only when it changes is decided by its owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_operator import constants
from atom_operator.children import naming
from atom_operator.domain import Identity, Manifest


def prefill_deployment(identity: Identity, spec: Mapping[str, Any], goes_with: str) -> Manifest:
    """Render the AtomDeployment of the prefill pods. goes_with: the digest of the request for the
    decode pods that these pods go with."""
    return {
        "apiVersion": constants.API_VERSION,
        "kind": constants.KIND,
        "metadata": naming.metadata(
            identity,
            naming.prefill_name(identity.key),
            {constants.ANNOTATION_GOES_WITH: goes_with},
        ),
        "spec": dict(spec),
    }
