"""A pod's claims as a ResourceQuota charges them, and whether the pod waits for one. Pure.

A pod names templates, and controllers make the claims, which quotas and policies judge separately:
a pod that was admitted may have none for ever. Only an Event reports that, and no scheduler looks
at the pod meanwhile. Called by observe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from atom_operator.domain import Manifest, PodState
from atom_operator.domain.devices import claimed_by


def with_claims(state: PodState, pod: Manifest, templates: Mapping[str, Manifest]) -> PodState:
    """Return the pod's state with its claims' charges; `templates`: of claims, by name."""
    entries = (pod.get("spec") or {}).get("resourceClaims") or ()
    wanted = {
        str(entry.get("name")): entry["resourceClaimTemplateName"]
        for entry in entries
        if entry.get("resourceClaimTemplateName")
    }
    if not wanted:
        return state
    made = {
        str(item.get("name"))
        for item in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    charged = Counter(state.placement.charged or {})
    for name in wanted.keys() & made:
        found = claimed_by(templates.get(wanted[name]) or {})
        charged.update(found.charged if found is not None else {})
    waits = not state.placement.scheduled and not wanted.keys() <= made
    placement = replace(state.placement, charged=charged, lacks_claim=waits)
    return replace(state, placement=placement)
