"""Rules of text encoders, which answer embeddings and scores: the engine's table, by field. Pure.

A gateway that knows cached prefixes is refused here as the engine's events of cached blocks are.
"""

from __future__ import annotations

from collections.abc import Iterator

from atom.sizing import EncoderOptions, ModelFacts, encoder_problems
from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.api.v1alpha1.option_field import spec_path
from atom_operator.constants import Reason
from atom_operator.domain import EngineOptions, FieldProblem

_EXTRA = "spec.engine.extraArgs"
_FIELDS = {
    "max_num_batched_tokens": spec_path("max_num_batched_tokens"),
    "long_prefill_token_threshold": _EXTRA,
    "runner": _EXTRA,
    "lora": "spec.engine.lora",
    "speculation": "spec.engine.speculative",
}


def validate_encoder(
    spec: AtomDeploymentSpec, options: EngineOptions, facts: ModelFacts | None
) -> Iterator[FieldProblem]:
    """Yield the fields that an encoder cannot have, each with its remedy; none for a decoder."""
    if facts is None:
        return
    serving, gateway = options.serving, spec.gateway
    pages = {
        "spec.cache.kv.hostMemory": bool(serving.host_tier_bytes),
        "spec.disaggregation": serving.transfer is not None,
        "spec.gateway.prefixAware": gateway is not None and bool(gateway.prefix_aware),
    }
    asked = EncoderOptions(
        max_model_len=options.model.max_model_len,
        step_tokens=options.scheduler.max_num_batched_tokens,
        chunk_tokens=options.scheduler.long_prefill_token_threshold,
        lora=options.lora is not None,
        page_options=tuple(name for name, is_set in pages.items() if is_set),
        speculation=options.speculative.method is not None,
        generates=options.model.runner == "generate",
    )
    for name, problem in encoder_problems(facts, asked):
        yield FieldProblem(_FIELDS.get(name, name), problem, Reason.UNSUPPORTED_BY_ENGINE)
