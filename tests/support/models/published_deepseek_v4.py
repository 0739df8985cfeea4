"""DeepSeek V4 as it is published: the config.json as far as it sizes anything, and the two formats
of its matrices, written from their own description and without the engine's code."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.models.quantised_checkpoint import mxfp4

# As deepseek-ai/DeepSeek-V4-Flash has them.
FLASH: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"], "torch_dtype": "bfloat16", "hidden_size": 4096,
    "num_hidden_layers": 43, "num_attention_heads": 64, "head_dim": 512, "q_lora_rank": 1024,
    "o_groups": 8, "o_lora_rank": 1024, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "num_experts_per_tok": 6, "n_shared_experts": 1, "index_n_heads": 64, "index_head_dim": 128,
    "index_topk": 512, "sliding_window": 128, "hc_mult": 4, "qk_rope_head_dim": 64,
    "max_position_embeddings": 1_048_576, "vocab_size": 129_280, "num_hash_layers": 3,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0], "num_nextn_predict_layers": 1,
}  # fmt: skip
# As deepseek-ai/DeepSeek-V4-Pro has them.
PRO: dict[str, Any] = {
    **FLASH, "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "q_lora_rank": 1536, "o_groups": 16, "moe_intermediate_size": 3072, "n_routed_experts": 384,
    "index_topk": 1024, "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0],
}  # fmt: skip
QUANTISED: dict[str, Any] = {
    "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
    "weight_block_size": [128, 128],
}  # fmt: skip

_WEIGHTS = "model.safetensors"
_FP8 = re.compile(
    r"(attn\.(wq_a|wq_b|wkv|wo_a|wo_b)|attn\.indexer\.wq_b|ffn\.shared_experts\.w\d)\.weight$"
)
_EXPERTS = re.compile(r"ffn\.experts\.\d+\.w\d\.weight$")


def quantised(
    folder: Path, experts: str, block: tuple[int, int], scales: torch.dtype
) -> tuple[Path, Path]:
    """Return two copies of a plain checkpoint under published names: quantised as published, and
    plain with the numbers that its codes stand for. experts: fp4 or fp8; scales: of fp8's blocks,
    float8_e8m0fnu or float32."""
    stored: dict[str, torch.Tensor] = {}
    meant: dict[str, torch.Tensor] = {}
    for name, matrix in load_file(folder / _WEIGHTS).items():
        below = re.sub(r"^layers\.\d+\.", "", name)
        if _EXPERTS.match(below) and experts == "fp4":
            parts, meant[name] = mxfp4(matrix)
            stored[name] = parts["weight"].view(torch.int8)
            scale = parts["weight_scale"].view(torch.float8_e8m0fnu)
        elif _EXPERTS.match(below) or _FP8.match(below):
            stored[name], scale, meant[name] = _fp8(matrix, block, scales)
        else:
            stored[name] = meant[name] = matrix
            continue
        stored[name.removesuffix("weight") + "scale"] = scale
    config = json.loads((folder / "config.json").read_text())
    section = {**QUANTISED, "weight_block_size": list(block)}
    return (
        _copy(folder, "quantised", stored, {**config, "quantization_config": section,
                                            "expert_dtype": experts}),
        _copy(folder, "meant", meant, config),
    )  # fmt: skip


def _copy(folder: Path, name: str, tensors: dict[str, torch.Tensor], config: Any) -> Path:
    copy = folder.with_name(f"{folder.name}-{name}")
    shutil.copytree(folder, copy)
    save_file(tensors, copy / _WEIGHTS, metadata={"format": "pt"})
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def _fp8(
    matrix: torch.Tensor, block: tuple[int, int], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes, scales and values of a matrix [out, in]; exponents are rounded up."""
    tall, wide = block
    rows, columns = matrix.shape
    scale = torch.zeros(-(-rows // tall), -(-columns // wide))
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            part = matrix[i * tall : (i + 1) * tall, j * wide : (j + 1) * wide]
            scale[i, j] = part.abs().max() / 448
    if dtype is torch.float8_e8m0fnu:
        scale = 2.0 ** scale.log2().ceil()
    spread = scale.repeat_interleave(tall, 0)[:rows].repeat_interleave(wide, 1)[:, :columns]
    codes = (matrix / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes, scale.to(dtype), codes.float() * spread
