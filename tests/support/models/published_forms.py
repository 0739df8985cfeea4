"""Quantised forms of the families as repositories publish them: which modules stay plain, and how a
quantization_config names them.

A form is a family's tiny checkpoint with its matrices in a layout (quantised_checkpoint.py). Where
a repository or its quantiser names what stays plain in a way of its own, NAMED_SO has it; elsewhere
every such module is listed, as the quantisers of Hugging Face, AutoAWQ and Quark do.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.models.draft_checkpoints import (
    Tensors,
    add_mimo_mtp_layers,
    add_mtp_layer,
    add_qwen_mtp_layer,
)
from tests.support.models.quantised_checkpoint import (
    CONVERTED,
    LAYOUTS,
    Layout,
    fp8_flat_rows,
    fp8_tensor,
    mxfp4,
)
from tests.support.models.tiny_model import make_tiny_checkpoint

# Beside matrices of layers: what joins a layer that drafts, and what it repeats of the model.
_NEVER = r"(norm|embed_tokens|eh_proj|shared_head\.head)$"


def _packed_mxfp4(x: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    tensors, values = mxfp4(x)
    tensors["weight_packed"] = tensors.pop("weight")
    return tensors, values


_FP4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
FORMS: dict[str, Layout] = {
    name: LAYOUTS[name]
    for name in (
        "fp8-blocks", "fp8-tensor", "compressed-fp8-rows", "compressed-fp8-blocks",
        "compressed-int8", "compressed-int4", "awq", "gptq", "quark-fp8", "quark-mxfp4",
    )
} | {
    "compressed-mxfp4": Layout(
        {
            "quant_method": "compressed-tensors",
            "format": "mxfp4-pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": _FP4}},
        },
        _packed_mxfp4,
    ),
    "modelopt-fp8": Layout({"quant_method": "modelopt", "quant_algo": "FP8"}, fp8_tensor),
    "modelopt-fp8-rows": Layout(
        {"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, fp8_flat_rows
    ),
    **CONVERTED,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """made: of make_tiny_checkpoint. plain: which modules stay plain, as a search. add_mtp: puts a
    layer that drafts beside the model's. stacks: experts in one tensor, which layouts in
    `stacked_in` have with scales beside it and others leave plain. apart: experts in one tensor,
    which a quantised checkpoint has each apart."""

    architecture: str
    made: Mapping[str, Any] = field(default_factory=dict)
    plain: str = "^$"
    add_mtp: Callable[[Path], Any] | None = None
    stacks: str = "^$"
    stacked_in: tuple[str, ...] = ()
    apart: str = "^$"


_DELTA_NET = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}  # fmt: skip
_EXPERTS = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
_GLM = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1,
    "moe_intermediate_size": 64, "kv_lora_rank": 32, "v_head_dim": 32, "qk_nope_head_dim": 24,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
}  # fmt: skip
_QWEN_GATES = r"mlp\.(gate|shared_expert_gate)$"
FAMILIES: dict[str, Family] = {
    "Qwen3-Next": Family(
        "qwen3_next", {"layers": 2, "extra": {**_DELTA_NET, **_EXPERTS}},
        rf"{_QWEN_GATES}|in_proj_ba$", add_qwen_mtp_layer,
    ),
    "Qwen3.5": Family(
        "qwen3_5", {"layers": 2, "extra": _DELTA_NET}, r"in_proj_[ab]$", add_qwen_mtp_layer
    ),
    "Qwen3.5 (experts)": Family(
        "qwen3_5_moe", {"layers": 2, "extra": {**_DELTA_NET, **_EXPERTS}},
        rf"{_QWEN_GATES}|in_proj_[ab]$", add_qwen_mtp_layer,
    ),
    "MiniMax-M2": Family("minimax_m2", plain=r"block_sparse_moe\.gate$"),
    "MiniMax-M3": Family(
        "minimax_m3",
        {"layers": 3, "extra": {
            "dense_intermediate_size": 64, "shared_intermediate_size": 64, "index_head_dim": 32,
            "intermediate_size": 64,
        }},
        r"block_sparse_moe\.gate$",
    ),
    "MiMo-V2-Flash": Family(
        "mimo_v2",
        {"layers": 3, "extra": {
            "moe_intermediate_size": 64, "v_head_dim": 16, "sliding_window_size": 20,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
        }},
        r"mlp\.gate$", add_mimo_mtp_layers,
    ),
    "GLM-4.5": Family(
        "glm4_moe", {"layers": 2, "extra": {"moe_intermediate_size": 64, "use_qk_norm": True}},
        r"mlp\.gate$", add_mtp_layer,
    ),
    "GLM-4.7-Flash": Family(
        "glm4_moe_lite", {"layers": 3, "extra": {**_GLM, "n_group": 1, "topk_group": 1}},
        r"mlp\.gate$",
    ),
    "GLM-5": Family(
        "glm_moe_dsa",
        {"layers": 3, "extra": {
            **_GLM, "index_topk": 20, "index_n_heads": 16, "index_head_dim": 32,
        }},
        r"mlp\.gate$|indexer\.weights_proj$", add_mtp_layer,
    ),
    "Kimi Linear": Family(
        "kimi_linear",
        {"layers": 3, "extra": {
            "moe_intermediate_size": 64, "linear_num_heads": 8, "linear_head_dim": 32,
            "kv_lora_rank": 32, "v_head_dim": 32, "qk_nope_head_dim": 24,
        }},
        r"block_sparse_moe\.gate$",
    ),
    "Gemma 4": Family("gemma4", {"layers": 3, "tie_word_embeddings": True}),
    "Nemotron-H": Family(
        "nemotron_h",
        {"extra": {
            "moe_intermediate_size": 64, "moe_shared_expert_intermediate_size": 64,
            "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 32,
        }},
        r"mixer\.gate$",
    ),
    "Granite 4": Family(
        "granite_hybrid",
        {"layers": 3, "intermediate": 64, "extra": {
            "shared_intermediate_size": 64, "mamba_n_heads": 8, "mamba_d_state": 32,
        }},
        r"router\.layer$", stacks=r"block_sparse_moe\.(in|out)put_linear$",
        stacked_in=("compressed-fp8-rows", "compressed-int8"),
    ),
    "LFM2": Family("lfm2", {"layers": 3, "extra": {"block_multiple_of": 32}}),
    "LFM2 (experts)": Family(
        "lfm2_moe", {"layers": 3, "extra": {"moe_intermediate_size": 64}}, r"feed_forward\.gate$"
    ),
    "ERNIE 4.5": Family("ernie4_5"),
    "ERNIE 4.5 (experts)": Family(
        "ernie4_5_moe", {"extra": {"moe_intermediate_size": 64}}, r"mlp\.gate$"
    ),
    "Hunyuan": Family("hunyuan"),
    "Hunyuan (experts)": Family("hunyuan_moe", plain=r"mlp\.gate\.wg$"),
    "Seed-OSS": Family("seed_oss", {"attention_bias": True}),
    "EXAONE 4": Family("exaone4", {"layers": 4, "extra": {"sliding_window": 24}}),
    "OLMo 3": Family("olmo3", {"layers": 4, "extra": {"sliding_window": 24}}),
    "SmolLM3": Family("smollm3", {"layers": 4}),
    "Phi-3 and Phi-4": Family("phi3", {"extra": {"sliding_window": 24}}),
    "Granite 3": Family("granite"),
}  # fmt: skip
# Those of which a family's models have parts that its own above has not.
SHAPES: dict[str, Family] = {
    "Gemma 4 (experts)": Family(
        "gemma4",
        {"layers": 3, "tie_word_embeddings": True, "extra": {
            "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3,
            "moe_intermediate_size": 64,
        }},
        r"router\.proj$", apart=r"\.experts\.(gate_up|down)_proj$",
    ),
    "Gemma 4 (small)": Family(
        "gemma4",
        {"layers": 6, "tie_word_embeddings": True, "extra": {
            "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 320,
            "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        }},
        r"per_layer_model_projection$|embed_tokens_per_layer$",
    ),
}  # fmt: skip
_QWEN_MOE = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
_DEEPSEEK = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1, "n_group": 4,
    "topk_group": 2, "moe_intermediate_size": 64, "first_k_dense_replace": 1, "kv_lora_rank": 32,
    "v_head_dim": 32, "qk_nope_head_dim": 24,
}  # fmt: skip
# Those that other tests have daily in some forms, and all of which the long run has here.
OLDER: dict[str, Family] = {
    "Llama 2/3": Family("llama"),
    "Qwen2/2.5": Family("qwen2"),
    "Qwen3": Family("qwen3"),
    "Mistral": Family("mistral", {"extra": {"sliding_window": 24}}),
    "Mixtral": Family(
        "mixtral", {"extra": {"num_local_experts": 4}}, r"block_sparse_moe\.gate$"
    ),
    "Qwen2-MoE": Family("qwen2_moe", {"extra": _QWEN_MOE}, _QWEN_GATES),
    "Qwen3-MoE": Family("qwen3_moe", {"extra": _QWEN_MOE}, r"mlp\.gate$"),
    "Gemma 2": Family("gemma2", {"extra": {"sliding_window": 24}}),
    "Gemma 3": Family("gemma3", {"layers": 6, "extra": {"sliding_window": 24}}),
    "DeepSeek V2": Family(
        "deepseek2", {"extra": {**_DEEPSEEK, "topk_method": "group_limited_greedy"}}, r"mlp\.gate$"
    ),
    "DeepSeek V3, R1 and Kimi-K2": Family("deepseek3", {"extra": _DEEPSEEK}, r"mlp\.gate$"),
    "DeepSeek V3.2": Family(
        "deepseek32",
        {"extra": {**_DEEPSEEK, "index_topk": 20, "index_n_heads": 16, "index_head_dim": 32}},
        r"mlp\.gate$|indexer\.weights_proj$",
    ),
}  # fmt: skip
_SIZES = {"hidden": 64, "head_dim": 32, "intermediate": 128}

# What a quantization_config says beside its layout's own, and what then stays plain.
NAMED_SO: dict[tuple[str, str], tuple[dict[str, Any], str]] = {
    # MiniMaxAI/MiniMax-M2: parts of names.
    ("MiniMax-M2", "fp8-blocks"): (
        {"fmt": "float8_e4m3fn",
         "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]},
        r"\.gate$",
    ),
    # XiaomiMiMo/MiMo-V2-Flash: all outputs of attention, that of the layer that drafts by the name
    # that a server has for it.
    ("MiMo-V2-Flash", "fp8-blocks"): (
        {"fmt": "e4m3", "ignored_layers": [
            *(f"model.layers.{index}.self_attn.o_proj" for index in range(3)),
            "model.decoder.self_attn.o_proj",
        ]},
        r"mlp\.gate$|o_proj$",
    ),
    # llm-compressor's examples for Qwen3-Next and Qwen3.5: what learns and forgets is quantised,
    # too, or nothing of the delta nets is.
    ("Qwen3-Next", "compressed-int4"): (
        {"ignore": ["lm_head", "re:.*mlp.gate$", "re:.*mlp.shared_expert_gate$"]}, _QWEN_GATES
    ),
    ("Qwen3.5 (experts)", "compressed-fp8-rows"): (
        {"ignore": [
            "re:.*lm_head", "re:visual.*", "re:model.visual.*", "re:.*mlp.gate$",
            "re:.*embed_tokens$", "re:.*shared_expert_gate$", "re:.*mlp\\.shared_expert$",
            "re:.*linear_attn.*", "re:mtp.*",
        ]},
        rf"{_QWEN_GATES}|linear_attn|^mtp\.",
    ),
    ("Qwen3.5", "compressed-int8"): (
        {"ignore": [
            "lm_head", "re:.*mlp.gate$", "re:.*mlp.shared_expert_gate.*", "re:.*norm.*",
            "re:.*embed_tokens.*", "re:.*visual.*", "re:.*conv1d.*", "re:.*mtp.*",
        ]},
        r"^mtp\.",
    ),
    ("Qwen3.5", "compressed-mxfp4"): (
        {"ignore": ["lm_head", "re:.*visual.*", "re:.*linear_attn.*", "re:.*mtp.*"]},
        r"linear_attn|^mtp\.",
    ),
    # Qwen/Qwen3.5-35B-A3B-GPTQ-Int4: experts alone.
    ("Qwen3.5 (experts)", "gptq"): (
        {"dynamic": {
            "lm_head": {}, "model.language_model.embed_tokens": {}, "-:.*attn.*": {},
            "-:.*shared_expert.*": {}, "-:.*mtp.*": {}, "-:.*visual.*": {}, "-:.*mlp.gate$": {},
        }},
        r"attn|shared_expert|^mtp\.|mlp\.gate$",
    ),
    ("GLM-4.5", "compressed-fp8-blocks"): (
        {"ignore": ["re:.*gate$", "lm_head", "model.embed_tokens"]}, r"gate$"
    ),
    # zai-org/GLM-5-FP8 names what is `weights_proj` in its tensors otherwise.
    ("GLM-5", "fp8-blocks"): (
        {"modules_to_not_convert": [
            "lm_head", "model.embed_tokens",
            *(f"model.layers.{index}.self_attn.indexers_proj" for index in range(4)),
            *(f"model.layers.{index}.mlp.gate" for index in (1, 2, 3)), "model.layers.3.eh_proj",
        ]},
        r"mlp\.gate$|indexer\.weights_proj$",
    ),
    # llm-compressor's Granite 4, with experts in 8 bits or plain.
    ("Granite 4", "compressed-fp8-rows"): (
        {"ignore": ["re:.*lm_head", "re:.*block_sparse_moe.router"]}, r"router\.layer$"
    ),
    ("Granite 4", "compressed-int4"): (
        {"ignore": ["lm_head", "re:.*block_sparse_moe"]}, r"block_sparse_moe"
    ),
    # nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8: attention and the mixers before it stay plain.
    ("Nemotron-H", "modelopt-fp8"): (
        {"producer": {"name": "modelopt", "version": "0.29.0"},
         "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
         "ignore": [
            *(f"backbone.layers.{index}.mixer.conv1d" for index in (0, 2)),
            *(f"backbone.layers.2.mixer.{name}" for name in ("in_proj", "out_proj")),
            *(f"backbone.layers.3.mixer.{each}_proj" for each in "qkvo"), "lm_head",
        ]},
        r"mixer\.gate$|layers\.[23]\.",
    ),
    # The same written by a search over names of tensors (llm-compressor's model_free_ptq).
    ("Nemotron-H", "compressed-fp8-blocks"): (
        {"ignore": [
            "re:.*conv1d.*", r"backbone\.embeddings", "re:.*_latent_proj.*",
            r"re:.*mixer.gate\..*", "re:mtp.layers.*", "backbone.norm_f", "lm_head",
        ]},
        r"mixer\.gate$",
    ),
    ("MiniMax-M2", "compressed-int4"): (
        {"ignore": ["lm_head"], "config_groups": {"group_0": {
            "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
            "targets": [
                r"re:model.layers.\d+.self_attn.(q|k|v|o)_proj$",
                r"re:model.layers.\d+.block_sparse_moe.experts.\d+.w[1-3]$",
                "re:.*(gate_up|gate|up|down)_proj$",
            ],
        }}},
        r"block_sparse_moe\.gate$",
    ),
}  # fmt: skip
_LISTED_AS = {
    "fp8": "modules_to_not_convert", "compressed-tensors": "ignore",
    "awq": "modules_to_not_convert", "quark": "exclude", "modelopt": "ignore",
    "mxfp8": "ignored_layers",
}  # fmt: skip


def make_published_form(folder: Path, family: str, form: str, **made: Any) -> tuple[Path, Path]:
    """The checkpoint in this form, and the plain one of the same values. made: of
    make_tiny_checkpoint."""
    kind, layout = (FAMILIES | SHAPES | OLDER)[family], FORMS[form]
    sizes = {**_SIZES, **kind.made, **made}
    plain = make_tiny_checkpoint(folder / "plain", kind.architecture, **sizes)  # type: ignore[arg-type]
    if kind.add_mtp is not None:
        kind.add_mtp(plain)
    says, left = NAMED_SO.get((family, form), ({}, kind.plain))
    quantised = Path(shutil.copytree(plain, folder / "quantised"))
    values, stored, untouched = load_file(plain / "model.safetensors"), {}, list[str]()
    for name, tensor in values.items():
        module = name.removesuffix(".weight")
        own = re.search(rf"{left}|{_NEVER}", module) is None and ".layers." in name
        if own and re.search(kind.apart, module):
            tensors, values[name] = _apart(module, tensor, layout)
            stored |= tensors
            continue
        if own and re.search(kind.stacks, module) and form in kind.stacked_in:
            tensors, values[name] = _stack(tensor, layout)
        elif own and name.endswith(".weight") and tensor.dim() == 2:
            tensors, values[name] = layout.store(tensor)
        else:
            stored[name] = tensor
            untouched.append(module)
            continue
        stored |= {f"{module}.{last}": made.contiguous() for last, made in tensors.items()}
    save_file(values, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(stored, quantised / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((quantised / "config.json").read_text())
    listed = {} if says else _listed(layout, untouched)
    config["quantization_config"] = {**layout.config, **listed, **says}
    (quantised / "config.json").write_text(json.dumps(config))
    return quantised, plain


def _stack(tensor: torch.Tensor, layout: Layout) -> tuple[Tensors, torch.Tensor]:
    stored, values = zip(*(layout.store(one) for one in tensor), strict=True)
    return {last: torch.stack([one[last] for one in stored]) for last in stored[0]}, torch.stack(
        values
    )


def _apart(module: str, tensor: torch.Tensor, layout: Layout) -> tuple[Tensors, torch.Tensor]:
    block, _, made = module.rpartition(".")
    names = ("gate_proj", "up_proj") if made == "gate_up_proj" else ("down_proj",)
    stored, values = dict[str, torch.Tensor](), []
    for number, expert in enumerate(tensor):
        for name, matrix in zip(names, expert.chunk(len(names)), strict=True):
            tensors, value = layout.store(matrix.contiguous())
            values.append(value)
            named = f"{block}.{number}.{name}"
            stored |= {f"{named}.{last}": each.contiguous() for last, each in tensors.items()}
    return stored, torch.cat(values).view(tensor.shape)


def _listed(layout: Layout, names: list[str]) -> dict[str, Any]:
    method = layout.config["quant_method"]
    if method == "gptq":
        return {"dynamic": {rf"-:^{re.escape(name)}$": {} for name in names}}
    return {_LISTED_AS[method]: [*names, "lm_head"]}
