"""What a plan's sizes are the sum of, as lines for people: weights by part, the cache by layer.

Pure; the terms are those that the plan was computed from (atom.sizing). Called by plan_report, for
a plan that fits as for one that does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from atom.sizing import KvTerm, ModelFacts, StateTerm, kv_terms, state_terms
from atom_operator.api.v1alpha1.option_field import spec_path
from atom_operator.domain import Accelerator, EngineOptions, ModelPlan, Plan
from atom_operator.plan.capacity import (
    as_served,
    held_parts,
    kv_element,
    speculation,
    stored_bytes,
)
from atom_operator.sizes import size_text

_ELEMENTS = {2: "16-bit floats", 4: "float32"}


def arithmetic(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the label and text of each term; nothing where the model's shape is unknown."""
    facts = plan.model.facts
    if facts is None:
        return
    vision = as_served(facts, plan.engine).vision
    if vision is not None:
        yield (
            "images",
            f"at most {vision.most_image_tokens:,} tokens each, in {facts.checkpoint.wrapper}",
        )
        yield "images of requests", _image_memory(plan)
    elif facts.checkpoint.wrapper:
        yield "text model", f"{facts.architecture}, the text part of {facts.checkpoint.wrapper}"
    yield "weights", _weights(plan.engine, plan.accelerator, facts)
    for term in _kv_terms(plan.engine, plan.accelerator, facts):
        yield "KV of a token", _cache_term(term, plan.engine.tensor_parallel)
    for states in state_terms(facts, plan.engine.tensor_parallel):
        yield "state of a sequence", _state_term(states)


def _image_memory(plan: Plan) -> str:
    """Describe the host's memory that decoded images take."""
    limit = plan.accelerator.memory_bytes if plan.accelerator.type == "cpu" else None
    size_bytes = plan.engine.images.memory_bytes(limit)
    return (
        f"at most {size_text(size_bytes)} of the host's memory in the server, and as much in the "
        f"engine ({spec_path('image_memory_mib')})"
    )


def terms(
    engine: EngineOptions, accelerator: Accelerator, model: ModelPlan
) -> dict[str, Any] | None:
    """List the terms for programs: bytes per device of each part, and per token of each kind of
    layer; None where the model's shape is unknown."""
    if model.facts is None:
        return None
    return {
        "weights": [asdict(part) for part in held_parts(model.facts, engine, accelerator)],
        "kv": [asdict(term) for term in _kv_terms(engine, accelerator, model.facts)],
        "states": [asdict(term) for term in state_terms(model.facts, engine.tensor_parallel)],
    }


def _kv_terms(
    engine: EngineOptions, accelerator: Accelerator, facts: ModelFacts
) -> tuple[KvTerm, ...]:
    element = kv_element(facts, engine, accelerator)
    drafts = speculation(engine)
    return kv_terms(facts, element, engine.tensor_parallel, drafts, engine.cache.block_size)


def _weights(engine: EngineOptions, accelerator: Accelerator, facts: ModelFacts) -> str:
    parts = held_parts(facts, engine, accelerator)
    stored = stored_bytes(accelerator)
    total = sum(part.size_bytes for part in parts)
    listed = ", ".join(
        f"{part.name} {size_text(part.size_bytes)}"
        + (" (whole on each)" if not part.sharded and engine.tensor_parallel > 1 else "")
        for part in sorted(parts, key=lambda part: -part.size_bytes)
    )
    form = _format(as_served(facts, engine), stored)
    return f"{size_text(total)} per device in {form}: {listed}"


def _format(facts: ModelFacts, stored: int | None) -> str:
    element = _ELEMENTS[stored or facts.weight_dtype_bytes]
    if stored is not None or facts.quantization is None:
        return element
    scheme = facts.quantization
    bits = " and ".join(str(size) for size in sorted({each.bits for each in scheme.formats}))
    told = f"{scheme.conversion}, {bits} bits" if scheme.conversion else f"{bits} bits"
    return f"{scheme.method} ({told}) and {element}"


def _state_term(term: StateTerm) -> str:
    kind = "layer" if term.layers == 1 else "layers"
    whole = size_text(term.layers * term.state_bytes)
    return f"{term.layers} {kind} of linear attention x {term.state_bytes:,} B = {whole}"


def _cache_term(term: KvTerm, ranks: int) -> str:
    kind = ("draft " if term.proposes else "") + ("layer" if term.layers == 1 else "layers")
    text = f"{term.layers} {kind} of {term.cache.value} x {term.token_bytes:,} B"
    text += f" = {size_text(term.layers * term.token_bytes)}"
    if term.mask.window is not None:
        text += f", of the newest {term.mask.window:,} tokens only"
    if ranks > 1 and not term.divided:
        text += ", the same on every device"
    return text
