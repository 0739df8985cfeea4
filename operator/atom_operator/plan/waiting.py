"""Decides whether pods wait for the weights or for an inspection of the model. Pure.

The inspection is worth a short wait, because it may show that the model does not fit; if it fails
the plan is unknown and the engine sizes itself. Without the weights no pod can start.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

from atom_operator.api.v1alpha1.common import quantity_bytes
from atom_operator.constants import Reason
from atom_operator.domain import EngineHealth, ModelPlan
from atom_operator.domain.preparation import JobState, Waiting
from atom_operator.sizes import size_text

_MOST_CONFIG_BYTES = 1 << 20
_RETRY = "It is tried again every ten minutes, and at once when the spec changes"


def waiting_for_weights(
    name: str, state: JobState | None, health: EngineHealth | None, not_pruned: str | None
) -> Waiting | None:
    """Return why pods wait for weights; None if these are stored. `health`: the download's own
    report; `not_pruned`: why it removes nothing from the claim though it should."""
    if state is None:
        return Waiting(Reason.DOWNLOADING_WEIGHTS, f"Job {name} is being created")
    if state.phase == "Succeeded":
        return None
    if state.phase == "Failed":
        kept = f". Nothing was removed from the claim: {not_pruned}" if not_pruned else ""
        message = f"Job {name} failed: {state.message}{kept}. {_RETRY}"
        return Waiting(Reason.DOWNLOAD_FAILED, message, failed=True)
    if state.problem is not None:
        return _blocked(name, state)
    progress = health.progress if health else None
    words = f" ({state.message})" if state.message else ""
    words += f"; nothing is removed from the claim: {not_pruned}" if not_pruned else ""
    stalled = progress is not None and progress.stalled
    reason = Reason.DOWNLOAD_STALLED if stalled else Reason.DOWNLOADING_WEIGHTS
    message, lost = f"Job {name} runs{words}", state.unschedulable
    return Waiting(reason, message, progress=progress, unschedulable=_named(name, lost))


def claim_too_small(model: ModelPlan, claim: Mapping[str, Any] | None) -> Waiting | None:
    """Return the wait for a claim that is smaller than the weights alone. None if it is not, or if
    either size is unknown; the download finds other models on it."""
    claim = claim or {}
    bound = (claim.get("status") or {}).get("capacity")
    asked = ((claim.get("spec") or {}).get("resources") or {}).get("requests")
    size = (bound or asked or {}).get("storage")
    if model.facts is None or size is None:
        return None
    wanted, room = model.facts.weight_bytes(with_mtp=True), quantity_bytes(str(size))
    if wanted <= room:
        return None
    message = (
        f"claim {model.location.claim} has {size_text(room)}, and the weights alone are"
        f" {size_text(wanted)}; enlarge it (spec.resources.requests.storage of the claim, where its"
        " StorageClass allows that), or name another in spec.cache.weights.claim"
    )
    return Waiting(Reason.CLAIM_TOO_SMALL, message, failed=True)


def _blocked(name: str, state: JobState) -> Waiting:
    """Wait for a blocked Job: it continues once a user repairs the reported fault."""
    reason = Reason.PODS_REFUSED if state.refused else Reason.POD_FAILING
    message = f"Job {name}: {state.problem}. It goes on when that is put right"
    return Waiting(reason, message, failed=True)


def _named(name: str, words: str | None) -> str | None:
    return f"Job {name}: {words}" if words else None


def waiting_for_inspection(name: str, state: JobState | None) -> Waiting | None:
    """Return why pods wait for the inspection; None once it has ended, successful or not."""
    if state is not None and state.phase != "Running":
        return None
    if state is not None and state.problem is not None:
        return _blocked(name, state)
    words = f": {state.message}" if state and state.message else ""
    message = f"Job {name} reads the model's config.json{words}"
    lost = _named(name, state.unschedulable if state else None)
    return Waiting(Reason.INSPECTING_MODEL, message, unschedulable=lost)


def inspected_config(state: JobState | None) -> str | None:
    """Return the text of the config.json that an inspection reported; None if it reported none."""
    if state is None or not state.result:
        return None
    try:
        packed = base64.b64decode(json.loads(state.result)["config"], validate=True)
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(packed, _MOST_CONFIG_BYTES)
        if unpacker.unconsumed_tail:
            return None
        return text.decode("utf-8")
    except (ValueError, KeyError, TypeError, zlib.error):
        return None
