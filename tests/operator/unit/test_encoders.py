"""Specs of text encoders: they are planned, and settings that no encoder has are refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from atom_operator.domain import FieldProblem, Owner
from atom_operator.reconcile.planning import Surroundings, consider
from tests.operator.unit.test_rendering import SITE
from tests.support.operator.builders_operator import IMAGES, KEY, parsed, plan

BERT: dict[str, Any] = {
    "architectures": ["BertModel"], "model_type": "bert", "hidden_size": 384, "vocab_size": 30_522,
    "num_attention_heads": 12, "num_hidden_layers": 12, "intermediate_size": 1536,
    "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu",
}  # fmt: skip
ENCODER: dict[str, Any] = {
    "model": {"source": "hf://example/encoder", "config": BERT},
    "accelerator": {"type": "amd", "product": "MI300X"},
}
# Of each setting the part of the spec, the field that is refused and the remedy.
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "drafts": (
        {"engine": {"speculative": {"method": "ngram", "tokens": 2}}},
        "spec.engine.speculative", "leave speculation out",
    ),
    "adapters": (
        {"engine": {"lora": {}}},
        "spec.engine.lora", "leave adapters out",
    ),
    "short steps": (
        {"engine": {"maxNumBatchedTokens": 256, "maxNumSeqs": 8}},
        "spec.engine.maxNumBatchedTokens", "raise the first",
    ),
    "generation": (
        {"engine": {"extraArgs": ["--runner=generate"]}},
        "spec.engine.extraArgs", "leave runner out",
    ),
    "chunks": (
        {"engine": {"extraArgs": ["--long-prefill-token-threshold=64"]}},
        "spec.engine.extraArgs", "leave long_prefill_token_threshold out",
    ),
    "a tier": (
        {"cache": {"kv": {"hostMemory": "8Gi"}}},
        "spec.cache.kv.hostMemory", "leave spec.cache.kv.hostMemory out",
    ),
    "roles": (
        {"disaggregation": {"prefill": {}}}, "spec.disaggregation", "leave spec.disaggregation out",
    ),
    "a gateway that knows prefixes": (
        {"gateway": {"prefixAware": True}},
        "spec.gateway.prefixAware", "leave spec.gateway.prefixAware out",
    ),
}  # fmt: skip


def problems(**changes: Any) -> tuple[FieldProblem, ...]:
    return consider(Owner(KEY, "uid"), parsed(**changes), Surroundings(IMAGES, site=SITE)).problems


def merged(*parts: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = dict(ENCODER)
    for part in parts:
        for key, value in part.items():
            known = found.get(key, {})
            lists = {
                name: known[name] + value[name]
                for name in {"extraArgs"} & known.keys() & value.keys()
            }
            found[key] = {**known, **value, **lists}
    return found


def test_an_encoder_is_planned_by_its_config() -> None:
    verdict = plan(**ENCODER).capacity
    assert verdict.fits == "True"
    assert verdict.capacity is not None
    assert verdict.capacity.max_model_len == 512


@pytest.mark.parametrize("names", [*itertools.combinations(REFUSED, 1), tuple(REFUSED)], ids=str)
def test_each_setting_that_no_encoder_has_is_a_problem_of_its_field(names: tuple[str, ...]) -> None:
    asked = merged(*(REFUSED[name][0] for name in names))
    found = problems(**asked)
    for name in names:
        _, field, remedy = REFUSED[name]
        (problem,) = (each for each in found if each.field == field and remedy in each.message)
        assert problem.reason.value == "UnsupportedByEngine"
    decoder = {**asked, "model": {"source": "hf://Qwen/Qwen3-8B"}}
    said = " ".join(problem.message for problem in problems(**decoder))
    assert "each token depends on the later ones" not in said
    assert "encoder" not in said


def test_a_quantised_encoder_is_refused_by_name() -> None:
    quantised = {**BERT, "quantization_config": {"quant_method": "fp8"}}
    (problem,) = problems(**{**ENCODER, "model": {**ENCODER["model"], "config": quantised}})
    assert (problem.field, problem.reason.value) == ("spec.model.config", "ModelNotSupported")
    assert "BertModel quantised by the method fp8" in problem.message
