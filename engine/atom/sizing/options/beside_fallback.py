"""Refuse options that a model without a family here cannot have: one table for engine and operator.

transformers' class computes such a model. A test proves it on one rank, with plain weights and
greedy and drawn tokens; all else is refused until a test proves it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from atom.sizing.model_facts import ModelFacts

# The options, by their keywords, with the feature that they ask for.
REFUSED_BESIDE_FALLBACK = {
    "data_parallel_size": "several copies of the model",
    "enable_lora": "adapters",
    "enable_sleep_mode": "sleep mode",
    "kv_cache_dtype": "an fp8 cache",
    "kv_offloading_size": "a KV tier in host memory",
    "kv_transfer_config": "an exchange of KV pages",
    "reproducible": "reproducible answers",
    "runner": "pooling",
    "speculative_config": "drafts",
}


def fallback_problems(facts: ModelFacts, asked: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the options that are asked for and that prevent serving a model without a family, each
    with the reason and the remedy; none for a family. asked: keywords of the table, with the names
    that the reader knows."""
    if not facts.is_fallback:
        return
    for name, feature in REFUSED_BESIDE_FALLBACK.items():
        if name in asked:
            yield (
                name,
                f"{feature} with a model that has no family here is not proven; leave "
                f"{asked[name]} out",
            )
