"""Tiny checkpoints of classes that have no family here, as transformers writes them.

Sizes are drawn and odd: three layers or more, heads that are no power of two, a window that a
prompt exceeds. Weights are drawn large enough that a wrong mask or scale changes the tokens.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
import transformers

VOCABULARY = 211
# Fields of single classes that other values would leave unseen.
OWN: dict[str, dict[str, Any]] = {
    "Cohere2ForCausalLM": {"sliding_window": 24, "logit_scale": 0.5},
    "CwmForCausalLM": {"sliding_window": 24},
    "GPTNeoXForCausalLM": {"rotary_pct": 0.5},
    "MinistralForCausalLM": {"sliding_window": 24},
    "Starcoder2ForCausalLM": {"sliding_window": 24},
    "VaultGemmaForCausalLM": {"sliding_window": 24},
    "StableLmForCausalLM": {"qk_layernorm": True, "use_parallel_residual": True},
}
# Classes whose queries, keys and values have one number of heads, or one KV head.
ONE_NUMBER = ("GPT2LMHeadModel", "GPTBigCodeForCausalLM", "GPTNeoXForCausalLM", "OPTForCausalLM",
              "BioGptForCausalLM", "CTRLLMHeadModel", "ModernBertDecoderForCausalLM",
              "PersimmonForCausalLM")  # fmt: skip
_INNER = ("intermediate_size", "ffn_dim", "n_inner", "dff")


def drawn_settings(architecture: str, seed: int) -> dict[str, Any]:
    """Draw the sizes of a configuration of the class, under its own names of fields."""
    draw = random.Random(f"{architecture} {seed}")
    kind = getattr(transformers, architecture).config_class
    defaults = kind().to_dict()
    kv_heads = draw.choice((1, 2, 3))
    heads = kv_heads * draw.choice((1, 2, 4))
    size = draw.choice((8, 16, 24))
    if architecture in ONE_NUMBER:
        kv_heads = heads
    wanted = {
        "num_hidden_layers": draw.choice((3, 5)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": heads * size,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 256,
        **({"head_dim": size} if "head_dim" in defaults else {}),
        **{name: draw.choice((40, 72)) for name in _INNER if name in defaults},
        **({"word_embed_proj_dim": heads * size} if "word_embed_proj_dim" in defaults else {}),
    }
    names = kind.attribute_map
    found = {names.get(key, key): value for key, value in wanted.items()}
    known = {key: value for key, value in found.items() if key in defaults}
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 1)
    return {**known, **tokens, **OWN.get(architecture, {})}


def make_fallback_checkpoint(
    folder: Path, architecture: str, seed: int = 0, **settings: Any
) -> Path:
    """Write a checkpoint of the class with drawn sizes and weights, in float32."""
    kind = getattr(transformers, architecture)
    config = kind.config_class(**{**drawn_settings(architecture, seed), **settings})
    model = kind(config).float()
    draw = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=draw)
            if parameter.dim() > 1:
                parameter.copy_(noise * 1.2 * parameter.shape[-1] ** -0.5)
            else:
                parameter.copy_(0.6 + 0.2 * noise)
    model.save_pretrained(folder)
    return folder


def published_model(folder: Path, architecture: str) -> transformers.PreTrainedModel:
    """Load a checkpoint as transformers itself computes it, in float32, with a mask of padding.

    transformers 5.17 computes VaultGemmaForCausalLM without its bound of scores unless attention is
    "eager", and MoshiForCausalLM lets tokens attend to later ones if there is no mask."""
    model: transformers.PreTrainedModel = getattr(transformers, architecture).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )

    def masked(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        ids = named["input_ids"] if "input_ids" in named else args[0]
        return args, {"attention_mask": torch.ones_like(ids), **named}

    model.register_forward_pre_hook(masked, with_kwargs=True)
    return model
