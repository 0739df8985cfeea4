"""A tiny checkpoint as one GGUF file, written by the `gguf` package as llama.cpp converts models.

Weights in any type that the package can quantise to; the vocabulary is the checkpoint's, of byte
pairs. The engine loads it as it loads any file; the checkpoint is the oracle.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from gguf.quants import quantize
from safetensors.numpy import load_file

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_TYPES = {int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32, str: GGUFValueType.STRING}
NORMAL, CONTROL = 1, 3


def write_gguf(
    checkpoint: Path,
    target: Path,
    *,
    matrices: str = "F32",
    changes: Mapping[str, Any] | None = None,
) -> Path:
    """Returns `target`. matrices: type of the weights that are matrices. changes: of the metadata,
    by key; None leaves it out."""
    config = json.loads((checkpoint / "config.json").read_text())
    architecture = _ARCHITECTURES[config["architectures"][0]]
    writer = GGUFWriter(target, architecture)
    fields = {**_shape_fields(config, architecture), **_vocabulary_fields(checkpoint, config)}
    for key, value in {**fields, **(changes or {})}.items():
        if value is not None:
            _add(writer, key, value)
    for name, values in load_file(checkpoint / "model.safetensors").items():
        _add_tensor(writer, name, values, config, matrices)
    factors = _rope_factors(config)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_key_value(key, value, _TYPES[type(value)])


def _add_tensor(
    writer: GGUFWriter, name: str, values: np.ndarray, config: Mapping[str, Any], matrices: str
) -> None:
    stem, _, kind = name.rpartition(".")
    layer = stem.removeprefix("model.layers.") if stem.startswith("model.layers.") else None
    if layer is not None:
        index, _, part = layer.partition(".")
        stored = f"blk.{index}.{_NAMES[part]}.{kind}"
    else:
        stored = f"{_NAMES[stem]}.{kind}"
    if config["architectures"] == ["LlamaForCausalLM"] and ".attn_q." in stored:
        values = permuted(values, config["num_attention_heads"])
    if config["architectures"] == ["LlamaForCausalLM"] and ".attn_k." in stored:
        values = permuted(values, config["num_key_value_heads"])
    of_kind = GGMLQuantizationType[matrices if values.ndim > 1 else "F32"]
    writer.add_tensor(stored, quantize(values.astype(np.float32), of_kind), raw_dtype=of_kind)


def permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """As convert_hf_to_gguf.py does for Llama's rotary embedding."""
    pairs = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _shape_fields(config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    rope = config["rope_parameters"]
    fields: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(rope["rope_theta"]),
    }
    if config.get("head_dim"):
        fields["attention.key_length"] = fields["attention.value_length"] = config["head_dim"]
    if rope["rope_type"] in ("linear", "yarn"):
        fields["rope.scaling.type"] = rope["rope_type"]
        fields["rope.scaling.factor"] = float(rope["factor"])
    if rope["rope_type"] == "yarn":
        original = rope["original_max_position_embeddings"]
        fields["rope.scaling.original_context_length"] = original
    return {f"{architecture}.{key}": value for key, value in fields.items()}


def _rope_factors(config: Mapping[str, Any]) -> np.ndarray | None:
    """As convert_hf_to_gguf.py writes Llama 3.1's scaling."""
    rope = config["rope_parameters"]
    if rope["rope_type"] != "llama3":
        return None
    old, low, high = (
        rope[key]
        for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    found = []
    for index in range(0, config["head_dim"], 2):
        length = 2 * math.pi * rope["rope_theta"] ** (index / config["head_dim"])
        if length < old / high:
            found.append(1.0)
        elif length > old / low:
            found.append(rope["factor"])
        else:
            smooth = (old / length - low) / (high - low)
            found.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(found, dtype=np.float32)


def _vocabulary_fields(checkpoint: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    stored = json.loads((checkpoint / "tokenizer.json").read_text())
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text())
    ids = dict(stored["model"]["vocab"])
    special = {token["content"]: token["id"] for token in stored["added_tokens"]}
    tokens = sorted(ids | special, key=(ids | special).__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL if text in special else NORMAL for text in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in stored["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": settings["chat_template"],
    }
