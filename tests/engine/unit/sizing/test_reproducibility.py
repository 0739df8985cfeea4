"""What reproducible answers do not go with is refused by the name of what to drop."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from atom.config import Config, EngineOptions, build_config
from atom.errors import ConfigError
from atom.lora_config import LoraConfig
from atom.model_ops.tree_sums import leaves_of
from atom.model_ops.values import LinearWeight
from atom.sizing import ModelFacts
from atom.sizing.projection import Split
from atom.sizing.reproducibility import LEAVES, order_of_sums
from atom.sizing.weights.layer_matrices import projections

_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256,
}  # fmt: skip
_MIXTRAL = _LLAMA | {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
    "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
_FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
_STATES = _LLAMA | {
    "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "conv_L_cache": 3,
    "layer_types": ["conv", "full_attention"], "norm_eps": 1e-5,
}  # fmt: skip


def _built(folder: Path, config: dict[str, Any], **options: Any) -> Config:
    (folder / "config.json").write_text(json.dumps(config))
    return build_config(
        EngineOptions.of(model=str(folder), load_dummy=True, reproducible=True, **options)
    )


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"quantization": "fp8"}, "drop --quantization"),
        ({"online_quant_config": {"global_quant_config": "int8"}}, "drop --quantization"),
        ({"backend": "torch_ref"}, "drop --backend"),
        ({"op_backends": {"sample": "torch_ref"}}, "--op-backend"),
        ({"lora": LoraConfig()}, "drop --enable-lora"),
        ({"kv_cache_dtype": "fp8"}, "drop --kv-cache-dtype fp8"),
    ],
)
def test_options_are_refused_by_name(tmp_path: Path, options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        _built(tmp_path, _LLAMA, **options)


@pytest.mark.parametrize(
    ("config", "reason"),
    [(_LLAMA | {"quantization_config": _FP8}, "is quantised"), (_STATES, "keep states")],
)
def test_models_are_refused_with_the_reason(
    tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=f"reproducible: .*{reason}.*drop --reproducible"):
        _built(tmp_path, config)


def test_a_plain_model_and_drafts_and_ranks_are_taken(tmp_path: Path) -> None:
    assert _built(tmp_path, _LLAMA, tensor_parallel_size=2).execution.reproducible


def _columns(facts: ModelFacts) -> set[int]:
    matrices = (
        matrix
        for alike in facts.layer_counts
        for matrix in projections(alike.layer, facts.hidden_size, facts.experts_block)
    )
    return {each.columns for each in matrices if each.split is Split.INPUTS}


@pytest.mark.parametrize("seed", range(30))
def test_orders_are_one_if_ranks_have_the_leaves_of_one_rank(seed: int) -> None:
    """The rule of page exchange and the rule by which ranks add up are two; they agree."""
    dice = random.Random(seed)
    heads = dice.choice((4, 8, 12))
    sizes = {
        "intermediate_size": 4 * dice.randrange(8, 20) + dice.choice((0, 0, 2)),
        "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": 16,
    }  # fmt: skip
    facts = ModelFacts.from_hf_config(_LLAMA | sizes)
    for ranks in (1, 2, 4):
        own = {columns // ranks for columns in _columns(facts) if columns % ranks == 0}
        leaves = {leaves_of(LinearWeight(torch.empty(1, each), ranks=ranks)) for each in own}
        if {columns % LEAVES for columns in _columns(facts)} == {0}:
            assert leaves == {LEAVES // ranks}
            assert order_of_sums(facts, ranks, "") == "tree"
        else:
            assert 1 in leaves
            assert order_of_sums(facts, ranks, "") != "tree"


def test_orders_that_nothing_has_proven_equal_have_names_of_their_own() -> None:
    dense, experts = (ModelFacts.from_hf_config(each) for each in (_LLAMA, _MIXTRAL))
    names = [order_of_sums(dense, ranks, gpu) for ranks in (1, 2, 4) for gpu in ("H200", "MI300X")]
    names += [order_of_sums(experts, ranks, "") for ranks in (1, 2, 4)]
    names += [order_of_sums(dense, 8, ""), order_of_sums(dense, 1, "")]
    assert len(set(names)) == len(names)
