"""Hugging Face architecture name → model class, imported when asked for."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from atom.config import ModelConfig
from atom.errors import ModelError
from atom.model_ops.backends.interface import Ops
from atom.models.decoder import CausalLM

# The guide's name for it (seeds/001); kept importable from model_runner too.
support_model_arch_dict: dict[str, str] = {
    "Qwen3ForCausalLM": "atom.models.qwen3:Qwen3ForCausalLM",
    "LlamaForCausalLM": "atom.models.llama:LlamaForCausalLM",
}


def build_model(config: ModelConfig, ops: Ops) -> CausalLM:
    """The model with empty parameters, on the current default device and dtype."""
    target = support_model_arch_dict.get(config.architecture)
    if target is None:
        raise ModelError(
            f"architecture {config.architecture} is not supported; "
            f"supported: {', '.join(support_model_arch_dict)}"
        )
    module, name = target.split(":")
    return cast(CausalLM, getattr(import_module(module), name)(config, ops))
