"""status.capacity and CapacityMatched: the plan beside the engine's measurement. Pure.

Without a plan the engine's numbers take its place. The measurement is read back from the status, so
that an engine is asked once per revision and not at every reconcile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom.sizing import Concurrency
from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import Capacity, CapacityVerdict, Measured
from atom_operator.status.conditions import Verdict

# Within this much the plan is taken as right: allocators and libraries vary by a few per cent.
TOLERANCE_PERCENT = 10


def capacity_status(verdict: CapacityVerdict, measured: Measured | None) -> dict[str, Any] | None:
    """Render the object for the status; None while nothing is known."""
    planned = verdict.capacity
    if planned is None and measured is None:
        return None
    shown = planned or (measured.capacity if measured else None)
    assert shown is not None
    status: dict[str, Any] = {**_numbers(shown), "confidence": _confidence(verdict)}
    if verdict.evidence is not None and planned is not None:
        status["correctedBy"] = verdict.evidence.revision
    if measured is not None:
        actual = {**_numbers(measured.capacity), "revision": measured.revision}
        if planned is not None:
            actual["driftPercent"] = drift_percent(planned, measured.capacity)
        status["actual"] = actual
    return status


def _confidence(verdict: CapacityVerdict) -> str:
    if verdict.capacity is None:
        return "Measured"
    return "Predicted" if verdict.evidence is None else "Corrected"


def measured_before(status: Mapping[str, Any]) -> Measured | None:
    """Return the measurement that a status holds; None if this version can read none."""
    actual = (status.get("capacity") or {}).get("actual")
    try:
        return _measured(actual) if actual else None
    except (KeyError, TypeError):
        return None  # written by another version: the engine is asked again


def _measured(actual: Mapping[str, Any]) -> Measured:
    rows = tuple(Concurrency(r["contextTokens"], r["sequences"]) for r in actual["concurrency"])
    capacity = Capacity(
        weights_bytes=actual["weightsBytesPerGPU"],
        kv_bytes_per_token=actual["kvBytesPerToken"],
        num_blocks=actual["blocks"],
        kv_tokens=actual["kvTokens"],
        max_sequences=actual["maxSequences"],
        max_model_len=actual["maxModelLen"],
        limited_by=actual["limitedBy"],
        concurrency=rows,
    )
    return Measured(actual["revision"], capacity)


def drift_percent(planned: Capacity, measured: Capacity) -> int:
    """Return how many per cent more (or, negative, fewer) KV tokens there are than planned."""
    return round(100 * (measured.kv_tokens - planned.kv_tokens) / planned.kv_tokens)


def capacity_matched(planned: Capacity | None, measured: Measured | None) -> Verdict:
    """Return whether the plan was right."""
    kind = ConditionType.CAPACITY_MATCHED
    if measured is None:
        message = "no engine of the latest revision has reported its capacity yet"
        return Verdict(kind, "Unknown", Reason.NOT_MEASURED, message)
    actual = measured.capacity
    if planned is None:
        message = f"there was no plan; the engine reports {actual.kv_tokens} tokens of KV cache"
        return Verdict(kind, "Unknown", Reason.MEASURED_WITHOUT_PLAN, message)
    drift = drift_percent(planned, actual)
    message = (
        f"planned {planned.kv_tokens} tokens of KV cache, measured {actual.kv_tokens} ({drift:+d}%)"
    )
    if abs(drift) <= TOLERANCE_PERCENT:
        return Verdict(kind, "True", Reason.MATCHES_PLAN, message)
    return Verdict(kind, "False", Reason.CAPACITY_DRIFT, f"{message}; {_cause(planned, actual)}")


def _cause(planned: Capacity, actual: Capacity) -> str:
    """Return the number that differs most, and where to look."""
    if planned.kv_bytes_per_token != actual.kv_bytes_per_token:
        return (
            f"a token takes {actual.kv_bytes_per_token} bytes and not "
            f"{planned.kv_bytes_per_token}: check that spec.model.config is this model's"
        )
    if abs(actual.weights_bytes - planned.weights_bytes) > planned.weights_bytes // 20:
        return (
            f"the weights take {actual.weights_bytes} bytes and not {planned.weights_bytes}: "
            "check that spec.model.config is this model's"
        )
    return "the device's free memory differs: check spec.accelerator and what else runs on it"


def _numbers(capacity: Capacity) -> dict[str, Any]:
    return {
        "weightsBytesPerGPU": capacity.weights_bytes,
        "kvBytesPerToken": capacity.kv_bytes_per_token,
        **(
            {"kvWindowBytesPerSequence": capacity.beside_kv.window_bytes}
            if capacity.beside_kv.window_bytes
            else {}
        ),
        "kvTokens": capacity.kv_tokens,
        "blocks": capacity.num_blocks,
        "maxSequences": capacity.max_sequences,
        "maxModelLen": capacity.max_model_len,
        "limitedBy": capacity.limited_by,
        "concurrency": [
            {"contextTokens": row.context_tokens, "sequences": row.sequences}
            for row in capacity.concurrency
        ],
    }
