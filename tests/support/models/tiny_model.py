"""Tiny random checkpoints in the format of the Hugging Face hub, written by transformers itself.

The engine loads them as it loads any model; transformers loads the same folder and is the oracle.
Weights are random but not close to zero, so that greedy continuations vary with the prompt.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.support.models.byte_tokenizer import END_OF_TEXT, TURN_END, write_byte_tokenizer

Architecture = Literal[
    "qwen3",
    "llama",
    "qwen2",
    "mistral",
    "gemma2",
    "gemma3",
    "gemma4",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_moe",
    "granite_hybrid",
    "nemotron_h",
    "kimi_linear",
    "lfm2",
    "lfm2_moe",
    "glm4_moe",
    "gpt_oss",
    "llama4",
    "deepseek2",
    "deepseek3",
    "deepseek32",
    "deepseek4",
    "minimax_m2",
    "minimax_m3",
    "mimo_v2",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "ernie4_5_moe",
    "seed_oss",
    "smollm3",
    "ernie4_5",
    "exaone4",
    "olmo3",
    "granite",
    "phi3",
    "hunyuan",
    "hunyuan_moe",
]

# By name: to import all of them takes seconds, and a test needs one or two.
_CLASSES: dict[str, tuple[str, str]] = {
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM"),
    "qwen2_moe": ("Qwen2MoeConfig", "Qwen2MoeForCausalLM"),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM"),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM"),
    "granite_hybrid": ("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM"),
    "nemotron_h": ("NemotronHConfig", "NemotronHForCausalLM"),
    "kimi_linear": ("KimiLinearConfig", "KimiLinearForCausalLM"),
    "lfm2": ("Lfm2Config", "Lfm2ForCausalLM"),
    "lfm2_moe": ("Lfm2MoeConfig", "Lfm2MoeForCausalLM"),
    "glm4_moe": ("Glm4MoeConfig", "Glm4MoeForCausalLM"),
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM"),
    "llama4": ("Llama4TextConfig", "Llama4ForCausalLM"),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM"),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "gemma4": ("Gemma4TextConfig", "Gemma4ForCausalLM"),
    "deepseek2": ("DeepseekV2Config", "DeepseekV2ForCausalLM"),
    "deepseek3": ("DeepseekV3Config", "DeepseekV3ForCausalLM"),
    "deepseek32": ("DeepseekV32Config", "DeepseekV32ForCausalLM"),
    "deepseek4": ("DeepseekV4Config", "DeepseekV4ForCausalLM"),
    "minimax_m2": ("MiniMaxM2Config", "MiniMaxM2ForCausalLM"),
    "minimax_m3": ("MiniMaxM3VLTextConfig", "MiniMaxM3VLForCausalLM"),
    "mimo_v2": ("MiMoV2FlashConfig", "MiMoV2FlashForCausalLM"),
    "glm4_moe_lite": ("Glm4MoeLiteConfig", "Glm4MoeLiteForCausalLM"),
    "glm_moe_dsa": ("GlmMoeDsaConfig", "GlmMoeDsaForCausalLM"),
    "ernie4_5_moe": ("Ernie4_5_MoeConfig", "Ernie4_5_MoeForCausalLM"),
    "seed_oss": ("SeedOssConfig", "SeedOssForCausalLM"),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM"),
    "ernie4_5": ("Ernie4_5Config", "Ernie4_5ForCausalLM"),
    "exaone4": ("Exaone4Config", "Exaone4ForCausalLM"),
    "olmo3": ("Olmo3Config", "Olmo3ForCausalLM"),
    "granite": ("GraniteConfig", "GraniteForCausalLM"),
    "phi3": ("Phi3Config", "Phi3ForCausalLM"),
    "hunyuan": ("HunYuanDenseV1Config", "HunYuanDenseV1ForCausalLM"),
    "hunyuan_moe": ("HunYuanMoEV1Config", "HunYuanMoEV1ForCausalLM"),
}
_WITH_LATENTS = (
    "deepseek2", "deepseek3", "deepseek32", "glm4_moe_lite", "glm_moe_dsa", "kimi_linear",
)  # fmt: skip
# Latent attention, and no experts: those are for who asks for them.
_LATENT: dict[str, Any] = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 1_000,
}
_LINEAR = "linear_attention"
_DELTA_NET: dict[str, Any] = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}  # fmt: skip
# Where a test says nothing of experts. Transformers' own defaults are 128 in a published size:
# 140 MB to make, to write and to read.
_FEW_EXPERTS: dict[str, dict[str, Any]] = {
    "qwen2_moe": {
        "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 40,
    },
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40},
    "qwen3_next": {
        "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 40, **_DELTA_NET,
    },
    "qwen3_5": _DELTA_NET,
    "qwen3_5_moe": {
        "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 40, **_DELTA_NET,
    },
    "gemma4": {
        "rope_parameters": None, "hidden_size_per_layer_input": 0, "global_head_dim": 32,
        "num_global_key_value_heads": 1, "attention_k_eq_v": True, "tie_word_embeddings": True,
        "final_logit_softcapping": 8.0, "sliding_window": 20,
    },
    "granite_hybrid": {
        "num_local_experts": 8, "num_experts_per_tok": 3, "shared_intermediate_size": 40,
        "mamba_n_heads": 4, "mamba_d_state": 24, "position_embedding_type": "rope",
    },
    "nemotron_h": {
        "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
        "moe_shared_expert_intermediate_size": 48, "mamba_num_heads": 4, "mamba_head_dim": 20,
        "n_groups": 2, "ssm_state_size": 24,
    },
    "kimi_linear": {
        "num_experts": 8, "num_experts_per_token": 3, "moe_intermediate_size": 40,
        "linear_num_heads": 4, "linear_head_dim": 20,
    },
    "lfm2_moe": {
        "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
        "num_dense_layers": 1,
    },
    "deepseek4": {
        "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
        "num_hash_layers": 1, "partial_rotary_factor": 0.25, "q_lora_rank": 24, "o_groups": 2,
        "o_lora_rank": 20, "index_n_heads": 16, "index_head_dim": 12, "index_topk": 10,
        "sliding_window": 20, "num_key_value_heads": 1, "swiglu_limit": 1.5,
    },
    "glm4_moe": {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40},
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 3},
    "minimax_m2": {"num_local_experts": 8, "num_experts_per_tok": 3},
    "minimax_m3": {
        "num_local_experts": 8, "num_experts_per_tok": 3, "dense_intermediate_size": 56,
        "shared_intermediate_size": 40, "index_n_heads": 2, "index_head_dim": 12,
        "index_block_size": 8, "index_topk_blocks": 3, "swiglu_limit": 1.5,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5,
        },
    },
    "mimo_v2": {
        "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
        "rope_parameters": None, "v_head_dim": 8,
    },
    "hunyuan_moe": {"num_experts": 8, "moe_topk": 3},
    "ernie4_5_moe": {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 40},
}  # fmt: skip

# Whose windows and whole layers have rotations of their own.
_ROTATIONS_BY_KIND = ("gemma3", "olmo3")

# Whose own defaults of scales would leave nothing of a tiny model's differences.
_SCALED: dict[str, dict[str, Any]] = {
    "granite": {
        "embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.4,
        "logits_scaling": 0.5,
    },
}  # fmt: skip

LLAMA3_ROPE_SCALING: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}

GENERATION_DEFAULTS: dict[str, Any] = {
    "do_sample": True,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
}


def class_name(architecture: Architecture) -> str:
    """As config.json names it."""
    return _CLASSES[architecture][1]


def make_tiny_checkpoint(
    folder: Path,
    architecture: Architecture = "qwen3",
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    intermediate: int = 128,
    max_position_embeddings: int = 512,
    shards: int = 1,
    rope_scaling: dict[str, Any] | None = None,
    rope_theta: float = 10_000.0,
    tie_word_embeddings: bool = False,
    attention_bias: bool = False,
    generation: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    classic_config: bool = False,
    extra: dict[str, Any] | None = None,
    seed: int = 0,
) -> Path:
    """Writes config, weights, tokenizer, chat template and generation config; returns `folder`.

    rope_scaling: pass LLAMA3_ROPE_SCALING for Llama 3's frequency scaling; None for plain rope.
    shards: number of safetensors files (with an index when more than one), at least roughly.
    generation: extra keys of generation_config.json, such as GENERATION_DEFAULTS.
    classic_config: spell config.json as checkpoints before transformers 5 do, which most published
    ones still are: rope_theta, rope_scaling and torch_dtype at the top level.
    extra: of config.json, beyond or instead of what the other arguments say.
    The model's end tokens are <|im_end|> and <|endoftext|>.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = write_byte_tokenizer(folder)
    end_ids = [tokenizer.token_to_id(TURN_END), tokenizer.token_to_id(END_OF_TEXT)]
    settings = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": max_position_embeddings,
        "rope_parameters": {"rope_theta": rope_theta, **(rope_scaling or {"rope_type": "default"})},
        "tie_word_embeddings": tie_word_embeddings,
        "attention_bias": attention_bias,
        "eos_token_id": end_ids[0],
        "bos_token_id": end_ids[1],
        "pad_token_id": end_ids[1],
        **_FEW_EXPERTS.get(architecture, {}),
        **(extra or {}),
    }
    model = _build(architecture, settings, seed).to(dtype)
    _save(model, folder, shards)
    if architecture == "minimax_m3":
        _name_dense_layers(folder)
    if classic_config:
        _respell_config(folder / "config.json")
    _write_generation_config(folder, end_ids, generation or {})
    return folder


def _build(
    architecture: Architecture, settings: dict[str, Any], seed: int
) -> transformers.PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config_class, model_class = (getattr(transformers, name) for name in _CLASSES[architecture])
        if architecture == "minimax_m3":
            _name_as_published()
            count = settings["num_hidden_layers"]
            kinds = ["full_attention", *["minimax_m3_sparse"] * count][:count]
            experts = ["dense" if kind == "full_attention" else "sparse" for kind in kinds]
            settings = {"layer_types": kinds, "mlp_layer_types": experts, **settings}
        if architecture == "llama":
            settings = {"mlp_bias": settings["attention_bias"], **settings}
        elif architecture in ("qwen2", "qwen3"):
            settings = {"use_sliding_window": False, **settings}
        elif architecture in _ROTATIONS_BY_KIND:
            if "rope_theta" in settings["rope_parameters"]:
                settings = {**settings, "rope_parameters": None}
        elif architecture in _SCALED:
            settings = {**_SCALED[architecture], **settings}
        elif architecture.startswith(("qwen3_next", "qwen3_5")):
            # Of fewer than four layers, none would attend.
            every = min(4, settings["num_hidden_layers"])
            settings = {"full_attention_interval": every, **settings}
        elif architecture == "granite_hybrid":
            count = settings["num_hidden_layers"]
            kinds = ["full_attention" if index % 3 == 1 else _LINEAR for index in range(count)]
            settings = {**_SCALED["granite"], "layer_types": kinds, **settings}
        elif architecture == "nemotron_h":
            blocks = [_LINEAR, "moe", _LINEAR, "full_attention", "mlp"]
            settings = {"layers_block_type": blocks, **settings}
        elif architecture.startswith("lfm2"):
            count = settings["num_hidden_layers"]
            kinds = ["full_attention" if index % 3 == 1 else "conv" for index in range(count)]
            settings = {"layer_types": kinds, **settings}
        elif architecture in _WITH_LATENTS:
            heads = settings["num_attention_heads"]
            settings = {**_LATENT, **settings, "num_key_value_heads": heads}
            settings["head_dim"] = settings["qk_rope_head_dim"]
            if architecture == "kimi_linear":
                count = settings["num_hidden_layers"]
                kinds = ["full_attention" if index % 3 == 1 else _LINEAR for index in range(count)]
                dense = {"layer_types": kinds, "first_k_dense_replace": 1}
                settings = {**settings, **dense}
                del settings["rope_parameters"]
        model: transformers.PreTrainedModel = model_class(config_class(**settings))
        # What Gemma's norms hold is what they are more than 1.
        norm = (
            0.0
            if architecture.startswith(("gemma2", "gemma3", "minimax_m3", "qwen3_next", "qwen3_5"))
            else 1.0
        )
        # The library's initialisation (deviation 0.02, unit norms) makes logits so flat that every
        # prompt continues with one token; larger weights make an error in any layer visible.
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                mean = 1.0 if "linear_attn.norm" in name else 0.0 if "bias" in name else norm
                torch.nn.init.normal_(weight, mean=mean, std=0.1)
            else:
                torch.nn.init.normal_(weight, std=0.12)
        for name, buffer in (*model.named_buffers(), *model.named_parameters()):
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                torch.nn.init.normal_(buffer, std=0.2)
            if name.endswith("layer_scalar"):
                torch.nn.init.normal_(buffer, mean=1.0, std=0.2)
            if name.endswith("tid2eid"):
                count = settings["n_routed_experts"]
                drawn = torch.rand(len(buffer), count).argsort(dim=1)
                buffer.copy_(drawn[:, : buffer.shape[1]])
    return model.eval()


def _name_as_published() -> None:
    """Let transformers write and read a text part of MiniMax-M3 under the published names, as it
    does the whole model."""
    from transformers import conversion_mapping

    whole = conversion_mapping.get_checkpoint_conversion_mapping("minimax_m3_vl")
    own = [each for each in whole if not any("^" in name for name in each.source_patterns)]
    conversion_mapping.register_checkpoint_conversion_mapping(
        "minimax_m3_vl_text", own, overwrite=True
    )


def _name_dense_layers(folder: Path) -> None:
    """Give dense layers their published names: transformers 5.17 writes those of experts."""
    for file in folder.glob("*.safetensors"):
        tensors = {
            re.sub(r"block_sparse_moe\.((gate|up|down)_proj\.)", r"mlp.\1", name): tensor
            for name, tensor in load_file(file).items()
        }
        save_file(tensors, file, metadata={"format": "pt"})


def _save(model: transformers.PreTrainedModel, folder: Path, shards: int) -> None:
    total_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    # The writer fills a file until the next tensor would pass the limit; a margin keeps the count.
    limit_bytes = total_bytes * 2 if shards == 1 else int(total_bytes / shards * 1.2)
    model.save_pretrained(folder, max_shard_size=limit_bytes)
    written = len(list(folder.glob("*.safetensors")))
    if written != shards:
        raise ValueError(f"{shards} shards were asked for, the writer made {written} of {folder}")


def _respell_config(path: Path) -> None:
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2))


def _write_generation_config(folder: Path, end_ids: list[int], extra: dict[str, Any]) -> None:
    content = {"eos_token_id": end_ids, "bos_token_id": end_ids[1], "pad_token_id": end_ids[1]}
    (folder / "generation_config.json").write_text(json.dumps({**content, **extra}, indent=2))
