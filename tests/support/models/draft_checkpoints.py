"""Weights that draft: MTP layers beside a tiny checkpoint's own, draft models of EAGLE-3, and whole
models.

In the names and shapes that published checkpoints have; random unless a test makes them otherwise.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"
Tensors = dict[str, torch.Tensor]


def add_mtp_layer(folder: Path, seed: int = 0) -> Tensors:
    """Put a layer that predicts the token behind the next into a checkpoint of one file; its
    tensors, by their names below the layer."""
    file, draw = folder / WEIGHTS, torch.Generator().manual_seed(seed)
    tensors, config = load_file(file), json.loads((folder / "config.json").read_text())
    last, size = config["num_hidden_layers"] - 1, config["hidden_size"]
    before = f"model.layers.{last}."
    layer = {
        name.removeprefix(before): _like(tensor, name, draw)
        for name, tensor in tensors.items()
        if name.startswith(before)
    }
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        layer[f"{norm}.weight"] = 1 + 0.2 * torch.randn(size, generator=draw)
    layer["eh_proj.weight"] = torch.randn(size, 2 * size, generator=draw) / (2 * size) ** 0.5
    # Published layers repeat what they share with the model.
    layer["embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    layer["shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    named = {f"model.layers.{last + 1}.{name}": tensor for name, tensor in layer.items()}
    save_file(tensors | named, file, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    return layer


def add_qwen_mtp_layer(folder: Path, seed: int = 0) -> Tensors:
    """Put the layer that Qwen3-Next and Qwen3.5 call `mtp` into a checkpoint of one file; its
    tensors, by their names there. It is like the last of the model's that attends."""
    file, draw = folder / WEIGHTS, torch.Generator().manual_seed(seed)
    tensors, config = load_file(file), json.loads((folder / "config.json").read_text())
    last = max(int(name.split(".")[2]) for name in tensors if ".self_attn." in name)
    before, size = f"model.layers.{last}.", config["hidden_size"]
    layer = {
        f"layers.0.{name.removeprefix(before)}": 0.2 * torch.randn(tensor.shape, generator=draw)
        for name, tensor in tensors.items()
        if name.startswith(before)
    }
    for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):  # what they are beyond 1
        layer[f"{norm}.weight"] = 0.2 * torch.randn(size, generator=draw)
    layer["fc.weight"] = torch.randn(size, 2 * size, generator=draw) / (2 * size) ** 0.5
    save_file(tensors | {f"mtp.{name}": each for name, each in layer.items()}, file,
              metadata={"format": "pt"})  # fmt: skip
    said = {"num_nextn_predict_layers": 1, "mtp_num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config | said))
    return layer


def add_mimo_mtp_layers(folder: Path, seed: int = 0) -> Tensors:
    """Put the three layers that MiMo-V2-Flash calls `model.mtp` into a checkpoint of one file,
    whose config.json says nothing of them; the first's tensors, by their names there. They attend
    as a layer with a window does, and their MLP is dense."""
    file, draw = folder / WEIGHTS, torch.Generator().manual_seed(seed)
    tensors, config = load_file(file), json.loads((folder / "config.json").read_text())
    size, inner = config["hidden_size"], config["intermediate_size"]
    sinks = next(name for name in tensors if name.endswith("attention_sink_bias"))
    before = sinks.partition("self_attn.")[0]
    shapes = {
        name.removeprefix(before): tensor.shape
        for name, tensor in tensors.items()
        if name.startswith(f"{before}self_attn.")
    }
    for norm in ("input_layernorm", "pre_mlp_layernorm", "enorm", "hnorm", "final_layernorm"):
        shapes[f"{norm}.weight"] = torch.Size([size])
    shapes["eh_proj.weight"] = torch.Size([size, 2 * size])
    for name, shape in (("gate", (inner, size)), ("up", (inner, size)), ("down", (size, inner))):
        shapes[f"mlp.{name}_proj.weight"] = torch.Size(shape)
    layers = [
        {
            name: _normal(shape, draw) / shape[-1] ** 0.5
            if len(shape) == 2
            else 1 + 0.2 * _normal(shape, draw)
            for name, shape in shapes.items()
        }
        for _ in range(3)
    ]
    for index, layer in enumerate(layers):
        tensors |= {f"model.mtp.layers.{index}.{name}": each for name, each in layer.items()}
    save_file(tensors, file, metadata={"format": "pt"})
    return layers[0]


def _normal(shape: torch.Size, draw: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=draw)


def _like(tensor: torch.Tensor, name: str, draw: torch.Generator) -> torch.Tensor:
    if "norm" in name:
        return 1 + 0.2 * torch.randn(tensor.shape, generator=draw)
    spread = float(tensor.float().std()) if tensor.numel() > 1 else 1.0
    return torch.randn(tensor.shape, generator=draw) * spread


def make_eagle3(
    folder: Path, target: Path, *, draft_vocabulary: int, seed: int = 0, layer: str = "midlayer"
) -> Tensors:
    """Write a draft model for a target; its tensors. layer: what its one layer is called."""
    config = json.loads((target / "config.json").read_text())
    draw, size, vocabulary = torch.Generator().manual_seed(seed), config["hidden_size"], 0
    heads, kv_heads, head = 4, 2, 16
    vocabulary, inner = config["vocab_size"], 96

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=draw) / columns**0.5

    def norm() -> torch.Tensor:
        return 1 + 0.2 * torch.randn(size, generator=draw)

    own = torch.randperm(vocabulary, generator=draw)[:draft_vocabulary].sort().values
    tensors = {
        "fc.weight": matrix(size, 3 * size),
        f"{layer}.self_attn.q_proj.weight": matrix(heads * head, 2 * size),
        f"{layer}.self_attn.k_proj.weight": matrix(kv_heads * head, 2 * size),
        f"{layer}.self_attn.v_proj.weight": matrix(kv_heads * head, 2 * size),
        f"{layer}.self_attn.o_proj.weight": matrix(size, heads * head),
        f"{layer}.mlp.gate_proj.weight": matrix(inner, size),
        f"{layer}.mlp.up_proj.weight": matrix(inner, size),
        f"{layer}.mlp.down_proj.weight": matrix(size, inner),
        f"{layer}.input_layernorm.weight": norm(),
        f"{layer}.hidden_norm.weight": norm(),
        f"{layer}.post_attention_layernorm.weight": norm(),
        "norm.weight": norm(),
        "lm_head.weight": matrix(draft_vocabulary, size),
        "d2t": own - torch.arange(draft_vocabulary),
        "t2d": torch.zeros(vocabulary, dtype=torch.bool).index_fill_(0, own, True),
    }
    described: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": size,
        "num_hidden_layers": 1, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": head, "intermediate_size": inner, "vocab_size": vocabulary,
        "draft_vocab_size": draft_vocabulary, "max_position_embeddings": 64, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 5000.0, "torch_dtype": "float32",
        "tie_word_embeddings": False,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(described))
    write_weights(folder, tensors)
    return tensors


def make_draft_model(folder: Path, target: Path, *, layers: int = 1) -> Path:
    """Write a model that guesses some tokens of a target's: its first layers, with its head."""
    config = json.loads((target / "config.json").read_text())
    tensors = {
        name: tensor
        for name, tensor in load_file(target / WEIGHTS).items()
        if not name.startswith("model.layers.") or int(name.split(".")[2]) < layers
    }
    folder.mkdir(parents=True, exist_ok=True)
    shortened = {key: value[:layers] for key, value in config.items() if key == "layer_types"}
    said = config | shortened | {"num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(said))
    write_weights(folder, tensors)
    return folder


def write_weights(folder: Path, tensors: Tensors) -> None:
    """Write a checkpoint's tensors anew."""
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
