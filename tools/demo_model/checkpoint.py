"""Writes and reads the checkpoint folder in the Hugging Face layout of a Qwen3 model.

Files: config.json, generation_config.json, model.safetensors (bf16), tokenizer.json and
tokenizer_config.json with the chat template. Knows the format only. The folder's README.md is
written by people and left alone.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn

from tools.demo_model.qwen3 import Qwen3, Shape
from tools.demo_model.vocabulary import CHAT_TEMPLATE, END_OF_TEXT, SPECIAL_TOKENS, TURN_END

WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
SIZE_LIMIT_BYTES = 8_000_000


@dataclass(frozen=True, slots=True)
class FileFacts:
    name: str
    size_bytes: int
    sha256: str


def config_of(shape: Shape, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",  # what readers older than transformers 5 look for
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_position_embeddings,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "rms_norm_eps": shape.rms_norm_eps,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "use_cache": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": shape.num_hidden_layers,
        "initializer_range": 0.02,
        "bos_token_id": None,
        "eos_token_id": tokenizer.token_to_id(TURN_END),
        "pad_token_id": tokenizer.token_to_id(END_OF_TEXT),
    }


def generation_config_of(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "do_sample": False,
        "eos_token_id": [tokenizer.token_to_id(TURN_END), tokenizer.token_to_id(END_OF_TEXT)],
        "pad_token_id": tokenizer.token_to_id(END_OF_TEXT),
    }


def tokenizer_config_of(shape: Shape) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.max_position_embeddings,
        "chat_template": CHAT_TEMPLATE,
    }


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_settings(folder: Path, shape: Shape, tokenizer: Tokenizer) -> None:
    """Everything but the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config_of(shape, tokenizer))
    write_json(folder / "generation_config.json", generation_config_of(tokenizer))
    write_json(folder / "tokenizer_config.json", tokenizer_config_of(shape))
    tokenizer.save(str(folder / TOKENIZER), pretty=False)


def write_weights(folder: Path, model: nn.Module) -> None:
    """Rounds the fp32 weights to bf16 and saves them; tied embeddings are saved once."""
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # safetensors makes it readable to its owner only


def read_checkpoint(folder: Path, dtype: torch.dtype) -> tuple[Qwen3, Tokenizer]:
    """The model in evaluation mode with its weights as `dtype`, and its tokenizer."""
    missing = [n for n in ("config.json", WEIGHTS, TOKENIZER) if not (folder / n).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder} is no checkpoint: {', '.join(missing)} not found; "
            "make one with `python -m tools.train_demo_model --out DIR`"
        )
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    fields = {name: config[name] for name in Shape.__dataclass_fields__}
    model = Qwen3(Shape(**fields))
    model.load_state_dict(load_file(folder / WEIGHTS))
    return model.to(dtype).eval(), Tokenizer.from_file(str(folder / TOKENIZER))


def file_facts(folder: Path) -> list[FileFacts]:
    """Name, size and digest of every file of the folder, by name."""
    facts = []
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        data = path.read_bytes()
        facts.append(FileFacts(path.name, len(data), hashlib.sha256(data).hexdigest()))
    return facts
