"""Corrections that an engine's measurements make to the next plan of the same kind. Pure.

The kind is model, image, device and parallelism. A plan predicts the memory beside weights and KV
cache ("reserve") and takes the device's nominal size; an engine measures both. Their ratio corrects
the next prediction, within bounds, so that one odd start cannot distort a plan. Numbers of an
engine whose model was not the planned one teach nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from atom.sizing.engine_support import LOOKED_UP_METHODS
from atom_operator.domain import (
    Accelerator,
    Capacity,
    CapacityVerdict,
    EngineOptions,
    Evidence,
    EvidencePlan,
    Measured,
    ModelLocation,
)

# A correction never goes further than this, whatever was measured.
_LEAST_RESERVE, _MOST_RESERVE = 0.25, 4.0
_LEAST_TOTAL, _MOST_TOTAL = 0.8, 1.05
# An engine whose weights differ by more loaded something else.
_WEIGHTS_TOLERANCE = 0.05
# Evidence stays while plans made with it hold this well, in per cent of KV tokens.
HOLDS_WITHIN_PERCENT = 10
_MOST_KEPT = 8


def learning_key(model: ModelLocation, options: EngineOptions, accelerator: Accelerator) -> str:
    """Name the kind of engine that evidence is about."""
    download = model.download
    parts = (
        model.source,
        (download.revision if download else model.revision) or "",
        options.serving.image,
        accelerator.type,
        accelerator.product or "",
        accelerator.resource_name or "",
        options.cache.kv_cache_dtype,
        f"tp{options.tensor_parallel}",
        f"nodes{options.nodes}",
        *(["reproducible"] if options.execution.reproducible else []),
        *(["experts"] if options.expert_parallel else []),
        *([f"shared{options.data_parallel}"] if options.shares_experts else []),
        *([f"drafts{options.speculative.tokens}"] if options.speculative.tokens else []),
        *([method] if (method := options.speculative.method) in LOOKED_UP_METHODS else []),
        *(["lora experts"] if options.lora and options.lora.experts else []),
        *([options.speculative.model] if options.speculative.model else []),
        *_tier_in_reserve(options, accelerator),
        *_loaded_form(options),
        *([f"lora{lora.max_loras}x{lora.max_rank}"] if (lora := options.lora) else []),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _loaded_form(options: EngineOptions) -> list[str]:
    """Return the form of the weights, if it is not the checkpoint's."""
    model, form = options.model, []
    if model.dtype != "auto":
        form.append(f"dtype {model.dtype}")
    if model.quantization is not None:
        form.append(f"stored as {model.quantization}")
    if model.online_quant_config is not None:
        form.append(f"stored as {json.dumps(model.online_quant_config, sort_keys=True)}")
    if options.redundant_experts:
        form.append(f"{options.redundant_experts} redundant experts")
    return form


def _tier_in_reserve(options: EngineOptions, accelerator: Accelerator) -> list[str]:
    """Return the part of a tier of the KV cache that the reserve contains: on a CPU the tier, on a
    GPU the places of pages on their way, of which a larger tier has no more. Their sizes are exact,
    so a factor measured beside them corrects no reserve without them."""
    size_bytes = options.serving.host_tier_bytes
    if not size_bytes:
        return []
    return [f"tier{size_bytes}"] if accelerator.type == "cpu" else ["tier"]


def evidence_for(key: str, known: Iterable[Evidence]) -> Evidence | None:
    """Return the first evidence about `key`, or None."""
    return next((item for item in known if item.key == key), None)


def reserve_factor(evidence: Evidence) -> float:
    """Return the factor for a predicted reserve."""
    factor = evidence.measured_reserve_bytes / evidence.predicted_reserve_bytes
    return min(max(factor, _LEAST_RESERVE), _MOST_RESERVE)


def total_factor(evidence: Evidence) -> float:
    """Return the factor for a device's nominal memory."""
    factor = evidence.measured_total_bytes / evidence.planned_total_bytes
    return min(max(factor, _LEAST_TOTAL), _MOST_TOTAL)


def learn(
    capacity: CapacityVerdict,
    evidence: EvidencePlan,
    measured: Measured | None,
    known: tuple[Evidence, ...],
) -> tuple[Evidence, ...]:
    """Add to `known` the evidence of `measured`, an engine of this plan; newest first."""
    planned, prediction = capacity.capacity, capacity.prediction
    if measured is None or planned is None or prediction is None:
        return known
    actual = measured.capacity
    if not _is_comparable(prediction, actual):
        return known
    before = evidence_for(evidence.key, known)
    if before is not None and (before.revision == measured.revision or _holds(planned, actual)):
        return known
    new = Evidence(
        key=evidence.key,
        revision=measured.revision,
        predicted_reserve_bytes=prediction.device.reserve_bytes,
        measured_reserve_bytes=actual.device.reserve_bytes,
        planned_total_bytes=prediction.device.total_bytes,
        measured_total_bytes=actual.device.total_bytes,
        startup=actual.startup,
    )
    others = (item for item in known if item.key != evidence.key)
    return (new, *others)[:_MOST_KEPT]


def _is_comparable(prediction: Capacity, actual: Capacity) -> bool:
    devices = (prediction.device, actual.device)
    if min(size for each in devices for size in (each.reserve_bytes, each.total_bytes)) <= 0:
        return False  # measured by an engine that does not report it
    difference = abs(actual.weights_bytes - prediction.weights_bytes)
    same_weights = difference <= _WEIGHTS_TOLERANCE * prediction.weights_bytes
    return same_weights and actual.kv_bytes_per_token == prediction.kv_bytes_per_token


def _holds(planned: Capacity, actual: Capacity) -> bool:
    drift = abs(actual.kv_tokens - planned.kv_tokens)
    return drift * 100 <= HOLDS_WITHIN_PERCENT * planned.kv_tokens
