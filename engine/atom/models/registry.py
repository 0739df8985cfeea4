"""Hugging Face architecture name → its family's file, imported when asked for.

A family's module has `spec(config) -> ModelSpec`; all are built as a CausalLM.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from atom.config import ModelConfig
from atom.errors import ModelError
from atom.model_ops.linear import Build
from atom.models.decoder.causal_lm import CausalLM
from atom.models.decoder.spec import ModelSpec

# The name that serving engines' guides give this table; importable from model_runner too.
support_model_arch_dict: dict[str, str] = {
    "LlamaForCausalLM": "atom.models.llama",
    "Qwen2ForCausalLM": "atom.models.qwen",
    "Qwen3ForCausalLM": "atom.models.qwen",
    "MistralForCausalLM": "atom.models.mistral",
    "Glm4MoeForCausalLM": "atom.models.glm_moe",
    "GptOssForCausalLM": "atom.models.gpt_oss",
    "MixtralForCausalLM": "atom.models.mixtral",
    "Qwen2MoeForCausalLM": "atom.models.qwen_moe",
    "Qwen3MoeForCausalLM": "atom.models.qwen_moe",
    "Qwen3NextForCausalLM": "atom.models.hybrid.qwen_next",
    "Qwen3_5ForCausalLM": "atom.models.hybrid.qwen_next",
    "Qwen3_5MoeForCausalLM": "atom.models.hybrid.qwen_next",
    "GraniteMoeHybridForCausalLM": "atom.models.granite",
    "NemotronHForCausalLM": "atom.models.hybrid.nemotron_h",
    "KimiLinearForCausalLM": "atom.models.hybrid.kimi_linear",
    "Lfm2ForCausalLM": "atom.models.hybrid.lfm2",
    "Lfm2MoeForCausalLM": "atom.models.hybrid.lfm2",
    "MiniMaxM2ForCausalLM": "atom.models.minimax",
    "MiMoV2FlashForCausalLM": "atom.models.mimo",
    "Glm4MoeLiteForCausalLM": "atom.models.deepseek",
    "GlmMoeDsaForCausalLM": "atom.models.deepseek",
    "SeedOssForCausalLM": "atom.models.llama",
    "SmolLM3ForCausalLM": "atom.models.smollm3",
    "Ernie4_5ForCausalLM": "atom.models.ernie",
    "Ernie4_5_MoeForCausalLM": "atom.models.ernie",
    "Exaone4ForCausalLM": "atom.models.exaone",
    "Olmo3ForCausalLM": "atom.models.olmo",
    "GraniteForCausalLM": "atom.models.granite",
    "Phi3ForCausalLM": "atom.models.phi3",
    "HunYuanDenseV1ForCausalLM": "atom.models.hunyuan",
    "HunYuanMoEV1ForCausalLM": "atom.models.hunyuan",
    "Gemma2ForCausalLM": "atom.models.gemma",
    "Gemma3ForCausalLM": "atom.models.gemma",
    "Gemma4ForCausalLM": "atom.models.gemma4",
    "Llama4ForCausalLM": "atom.models.llama4",
    "DeepseekV2ForCausalLM": "atom.models.deepseek",
    "DeepseekV3ForCausalLM": "atom.models.deepseek",
    "DeepseekV32ForCausalLM": "atom.models.deepseek",
    "DeepseekV4ForCausalLM": "atom.models.deepseek_v4",
}


def model_spec(config: ModelConfig) -> ModelSpec:
    """Build the spec of the configuration's architecture. Raises `ModelError` if the architecture,
    or the meaning of a field of config.json, is not supported."""
    module = support_model_arch_dict.get(config.architecture)
    if module is None:
        raise ModelError(
            f"architecture {config.architecture} is not supported; "
            f"supported: {', '.join(support_model_arch_dict)}"
        )
    return cast(ModelSpec, import_module(module).spec(config))


def build_model(spec: ModelSpec, build: Build) -> CausalLM:
    """Build the model with empty parameters, on the current default device and dtype."""
    return CausalLM(spec, build)
