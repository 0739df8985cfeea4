"""What reproducible answers do not go with is refused by the name of what to drop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atom.config import Config, EngineOptions, build_config
from atom.errors import ConfigError
from atom.lora_config import LoraConfig

_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256,
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
