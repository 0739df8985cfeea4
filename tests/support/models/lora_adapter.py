"""Adapters as PEFT writes them, for tiny checkpoints: random low-rank matrices, large enough that
every one of them changes what the model says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import nn

if TYPE_CHECKING:
    from peft import PeftModel

# What routers and heads are called, which are served without adapters, and matrices that attention
# multiplies with by itself.
_LEFT_ALONE = ("lm_head", "kv_b_proj", "o_a_proj", "gate", "router", "wg")
# PEFT refuses them of Mamba's layers, whose kernels pass their module by.
_OF_MAMBA = {"nemotron_h": ("out_proj",)}


def linear_names(model: transformers.PreTrainedModel) -> list[str]:
    """Names of every linear layer that adapters are served for. Of most families with experts PEFT
    takes names of a shared expert's matrices for those of all experts: attention's alone."""
    from peft.utils.transformers_weight_conversion import _MODEL_TO_CONVERSION_PATTERN

    has_experts = model.config.model_type in _MODEL_TO_CONVERSION_PATTERN
    left = (*_LEFT_ALONE, *_OF_MAMBA.get(model.config.model_type, ()))
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and ".experts" not in name
        and ".router." not in name
        and name.rpartition(".")[2] not in left
        and not (has_experts and ".mlp." in name)
    ]


def make_adapter(
    folder: Path, checkpoint: Path, *, rank: int = 4, seed: int = 0, **settings: Any
) -> Path:
    """Write an adapter for every linear layer of the checkpoint, unless `settings`, fields of
    PEFT's LoraConfig, say otherwise; returns `folder`."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    adapt(model, folder, rank=rank, seed=seed, **settings)
    return folder


def adapt(
    model: transformers.PreTrainedModel,
    folder: Path,
    *,
    rank: int = 4,
    seed: int = 0,
    **settings: Any,
) -> PeftModel:
    """Give a model an adapter, as `make_adapter` does, and write it to the folder."""
    from peft import LoraConfig, get_peft_model

    asked = {"target_modules": linear_names(model), "lora_alpha": 2 * rank, **settings}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapted = get_peft_model(model, LoraConfig(r=rank, **asked))
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(weight, std=0.12)
    adapted.save_pretrained(folder)
    return adapted.eval()


def adapted_model(checkpoint: Path, adapter: Path | None) -> nn.Module:
    """The oracle: transformers' model, with PEFT's adapter if there is one."""
    from peft import PeftModel

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    return model.eval() if adapter is None else PeftModel.from_pretrained(model, adapter).eval()
