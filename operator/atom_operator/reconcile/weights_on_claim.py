"""Reads the users of the weights on a claim, for a download that may remove the unused ones.

Read when a download is about to be requested, and never cached: the answer is of that moment, and
is sent with the request. Called by prerequisites.py; plan/volume_claims/kept_weights.py defines
use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.canary_spec import canary_spec
from atom_operator.cluster.errors import RefusedError
from atom_operator.cluster.port import ClusterPort
from atom_operator.constants import ACCEPTED_SPEC_KEY
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CONTROLLER_REVISION,
    POD,
    VOLUME_CLAIM,
    WORKLOAD_KINDS,
    ModelLocation,
    ObjectKey,
)
from atom_operator.domain.preparation import ClaimInUse
from atom_operator.plan.volume_claims.kept_weights import (
    accepted_specs,
    folders_named,
    foreign_readers,
)
from atom_operator.pods.pod_state import has_ended
from atom_operator.validation.defaulting import locate_model
from atom_operator.validation.parsing import parse_spec


async def claim_in_use(
    port: ClusterPort, key: ObjectKey, location: ModelLocation, at: datetime | None
) -> ClaimInUse | None:
    """Return the claim of the plan's download with its folders in use; None if it does not exist
    yet."""
    namespace, claim = key.namespace, str(location.claim)
    manifest = await port.get(VOLUME_CLAIM, namespace, claim)
    uid = str(((manifest or {}).get("metadata") or {}).get("uid") or "")
    if not uid:
        return None
    download = location.download
    if download is None or download.prune is None or at is None:
        return ClaimInUse(uid)
    try:
        kept, unknown = await _kept(port, namespace, claim)
    except RefusedError as error:
        kept, unknown = frozenset(), str(error)
    if unknown is not None:
        return ClaimInUse(uid, unknown=unknown)
    return ClaimInUse(uid, tuple(sorted(kept)), at)


async def _kept(port: ClusterPort, namespace: str, claim: str) -> tuple[frozenset[str], str | None]:
    """Return the folders in use, or why they are unknown."""
    pods = [pod for pod in await port.list_labelled(POD, namespace, {}) if not has_ended(pod)]
    if readers := foreign_readers(claim, pods):
        return frozenset(), f"pod {readers[0]} mounts claim {claim} too, and is not the operator's"
    owned = [
        item
        for kind in (*WORKLOAD_KINDS, CONTROLLER_REVISION)
        for item in await port.list_children(kind, namespace)
    ]
    asked = await port.list_labelled(ATOM_DEPLOYMENT, namespace, {})
    raw = [found.get("spec") or {} for found in asked]
    raw += accepted_specs(owned, ACCEPTED_SPEC_KEY)
    specs: list[AtomDeploymentSpec] = []
    for each in raw:
        parsed = _specs(each)
        if parsed is None:
            return frozenset(), "a spec of the namespace cannot be read by this operator"
        specs += parsed
    named = folders_named(claim, [*pods, *owned, *raw])
    return named | folders_of_specs(claim, specs), None


def folders_of_specs(claim: str, specs: Iterable[AtomDeploymentSpec]) -> frozenset[str]:
    """Return the folders into which the models of these specs are downloaded, or were."""
    places = (locate_model(spec) for spec in specs)
    return folders_named(claim, [place.argument for place in places if place.claim == claim])


def _specs(raw: Mapping[str, Any]) -> list[AtomDeploymentSpec] | None:
    """Return the spec and that of its canary; None if one does not parse."""
    spec = parse_spec(raw)
    if isinstance(spec, tuple):
        return None
    if spec.canary is None:
        return [spec]
    beside = parse_spec(canary_spec(raw, spec))
    return None if isinstance(beside, tuple) else [spec, beside]
