"""Rules of models that have no family in the engine: the engine's table, by field. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from atom.sizing import ModelFacts, fallback_notice, fallback_problems
from atom_operator.api.v1alpha1.option_field import spec_path
from atom_operator.constants import Reason
from atom_operator.domain import EngineOptions, FieldProblem

_EXTRA = "spec.engine.extraArgs"
_FIELDS = {
    "data_parallel_size": spec_path("data_parallel_size"),
    "enable_lora": "spec.engine.lora",
    "enable_sleep_mode": _EXTRA,
    "kv_cache_dtype": spec_path("kv_cache_dtype"),
    "kv_offloading_size": "spec.cache.kv.hostMemory",
    "kv_transfer_config": "spec.disaggregation",
    "reproducible": "spec.engine.reproducible",
    "runner": _EXTRA,
    "speculative_config": "spec.engine.speculative",
}
_FLAGS = {"enable_sleep_mode": "--enable-sleep-mode", "runner": "--runner"}  # in extraArgs


def validate_fallback(options: EngineOptions, facts: ModelFacts | None) -> Iterator[FieldProblem]:
    """Yield the fields that a model without a family cannot have, each with its remedy; none for
    other models."""
    if facts is None:
        return
    asked = {
        "data_parallel_size": options.data_parallel > 1,
        "enable_lora": options.lora is not None,
        "enable_sleep_mode": options.serving.may_sleep,
        "kv_cache_dtype": options.cache.kv_cache_dtype == "fp8",
        "kv_offloading_size": bool(options.serving.host_tier_bytes),
        "kv_transfer_config": options.serving.transfer is not None,
        "reproducible": options.execution.reproducible,
        "runner": options.model.runner == "pooling",
        "speculative_config": options.speculative.method is not None,
    }
    places = {name: _FIELDS[name] for name, given in asked.items() if given}
    words = {name: _FLAGS.get(name, place) for name, place in places.items()}
    for name, problem in fallback_problems(facts, words):
        yield FieldProblem(places[name], problem, Reason.UNSUPPORTED_BY_ENGINE)


def fallback_warnings(facts: ModelFacts | None) -> tuple[str, ...]:
    """Return the warning about a model without a family; none for other models."""
    notice = "" if facts is None else fallback_notice(facts)
    if not notice:
        return ()
    return (
        f"spec.model: {notice}; config.json bounds its weights from above, and the engine proves "
        "the class at its start",
    )
