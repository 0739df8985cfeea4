"""Hugging Face architecture name → its family's file, imported when asked for.

A family's module has `spec(config) -> ModelSpec`; all are built as a CausalLM.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import cast

from atom.config import Config, ModelConfig
from atom.errors import ModelError
from atom.model_ops.linear import Build
from atom.models.decoder import CausalLM
from atom.models.draft_models.draft_model import DraftModel
from atom.models.draft_models.eagle3 import Eagle3Draft
from atom.models.draft_models.mtp import MtpDraft
from atom.models.spec import ModelSpec, decoder_spec
from atom.sizing.drafting import default_aux_layers

_AUX_LAYERS = 3

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
    "Qwen3NextForCausalLM": "atom.models.qwen_next",
    "MiniMaxM2ForCausalLM": "atom.models.minimax",
    "Glm4MoeLiteForCausalLM": "atom.models.deepseek",
    "GlmMoeDsaForCausalLM": "atom.models.deepseek",
    "SeedOssForCausalLM": "atom.models.seed_oss",
    "SmolLM3ForCausalLM": "atom.models.smollm3",
    "Ernie4_5ForCausalLM": "atom.models.ernie",
    "Ernie4_5_MoeForCausalLM": "atom.models.ernie",
    "Exaone4ForCausalLM": "atom.models.exaone",
    "Olmo3ForCausalLM": "atom.models.olmo",
    "GraniteForCausalLM": "atom.models.granite",
    "Gemma2ForCausalLM": "atom.models.gemma",
    "Gemma3ForCausalLM": "atom.models.gemma",
    "Llama4ForCausalLM": "atom.models.llama4",
    "DeepseekV2ForCausalLM": "atom.models.deepseek",
    "DeepseekV3ForCausalLM": "atom.models.deepseek",
    "DeepseekV32ForCausalLM": "atom.models.deepseek",
}


def model_spec(config: ModelConfig) -> ModelSpec:
    """Return what the architecture computes by. Raises `ModelError` for one that is not supported,
    or on a field of config.json whose meaning is not."""
    module = support_model_arch_dict.get(config.architecture)
    if module is None:
        raise ModelError(
            f"architecture {config.architecture} is not supported; "
            f"supported: {', '.join(support_model_arch_dict)}"
        )
    return cast(ModelSpec, import_module(module).spec(config))


def build_model(spec: ModelSpec, build: Build) -> CausalLM:
    """The model with empty parameters, on the current default device and dtype."""
    return CausalLM(spec, build)


def drafted_spec(config: Config) -> tuple[ModelSpec, ModelSpec | None]:
    """The model's, with auxiliary layers where a checkpoint of its own drafts for it, and that
    checkpoint's."""
    spec = model_spec(config.model)
    if config.draft is None:
        return spec, None
    layers = _aux_layers(config.draft, len(spec.layers))
    return replace(spec, aux_layers=layers), decoder_spec(config.draft)


def build_draft(
    spec: ModelSpec, draft: ModelSpec | None, model: CausalLM, build: Build
) -> DraftModel:
    """Return what drafts for the model: of a checkpoint of its own, or the model's."""
    if draft is None:
        return MtpDraft(spec, model, build)
    return Eagle3Draft(draft, spec, model.model.embed_tokens, build)


def _aux_layers(draft: ModelConfig, num_layers: int) -> tuple[int, ...]:
    """Layers whose inputs the draft model sees. `eagle_config` names layers by their outputs (as
    SGLang reads it), a field at the top by their inputs (as vLLM does)."""
    raw = draft.hf_config
    by_output = (raw.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    by_input = raw.get("eagle_aux_hidden_state_layer_ids")
    found = tuple(by_input or ()) or tuple(layer + 1 for layer in by_output or ())
    layers = found or default_aux_layers(num_layers)
    if len(set(layers)) != _AUX_LAYERS or not all(0 <= layer < num_layers for layer in layers):
        raise ModelError(
            f"{draft.path / 'config.json'}: eagle_aux_hidden_state_layer_ids are to name "
            f"{_AUX_LAYERS} different layers of the model's {num_layers}, got {list(found)}"
        )
    return layers
