"""The AtomDeployment of the prefill pods, read from the children that were observed. Pure.

Its owner knows its status alone, as of a canary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_operator.constants import ANNOTATION_GOES_WITH, ConditionType, Reason
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    ChildKey,
    Manifest,
    PrefillPhase,
    PrefillState,
    is_prefill,
)
from atom_operator.pods.owned_status import STARTS, condition_of, is_ready, is_reported, refusal

# Of Progressing: the pods change, as the last pass reported it.
_CHANGING = (Reason.ROLLING_OUT, Reason.INSPECTING_MODEL, Reason.DOWNLOADING_WEIGHTS)


def prefill_among(children: Mapping[ChildKey, Manifest]) -> PrefillState | None:
    """Return the state of the prefill pods among the children of an AtomDeployment."""
    found = (
        manifest
        for child, manifest in children.items()
        if child.kind == ATOM_DEPLOYMENT and is_prefill(manifest.get("spec") or {})
    )
    return state_of(next(found, None))


def state_of(manifest: Manifest | None) -> PrefillState | None:
    """Read the AtomDeployment of prefill pods; None if there is none."""
    if manifest is None:
        return None
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    told = is_reported(manifest)
    message = condition_of(manifest, ConditionType.READY).get("message") if told else None
    return PrefillState(
        name=str(metadata["name"]),
        spec=manifest.get("spec") or {},
        goes_with=(metadata.get("annotations") or {}).get(ANNOTATION_GOES_WITH),
        phase=_phase(manifest) if told else PrefillPhase.ROLLING,
        words=str(message or STARTS),
        is_ready=told and is_ready(manifest),
        replicas=_asked(status),
        ready_replicas=int(status.get("readyReplicas") or 0),
        revision=status.get("revision"),
        ending=int((status.get("rollout") or {}).get("ending") or 0),
    )


def _phase(manifest: Manifest) -> PrefillPhase:
    if (manifest.get("spec") or {}).get("suspend"):
        status = manifest.get("status") or {}
        left = (status.get("replicas"), (status.get("rollout") or {}).get("ending"))
        return PrefillPhase.ROLLING if any(left) else PrefillPhase.COMPLETE
    if refusal(manifest) is not None:
        return PrefillPhase.STOPPED
    reason = condition_of(manifest, ConditionType.PROGRESSING).get("reason")
    if is_ready(manifest) or reason == Reason.COMPLETE:
        return PrefillPhase.COMPLETE
    return PrefillPhase.ROLLING if reason in _CHANGING else PrefillPhase.STOPPED


def _asked(status: Mapping[str, Any]) -> int:
    """Return the replicas that are asked for, which status.serving ends with."""
    asked = str(status.get("serving") or "").partition("/")[2]
    return int(asked) if asked.isdecimal() else 0
