"""The backends of a model's operations, as its layers and the configuration ask for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from atom.config import Config
from atom.model_ops.backends import ResolvedOps, resolve_ops, resolve_reproducible_ops
from atom.model_ops.backends.op_case import LoraMatrices
from atom.models.decoder.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class ElementTypes:
    """The dtypes of the model's activations and of its KV cache."""

    model: torch.dtype
    kv: torch.dtype


def chosen_ops(config: Config, layers: ModelSpec, types: ElementTypes, device: str) -> ResolvedOps:
    """Choose a backend for each operation. layers: all that a rank computes, those that draft too;
    device: its type. Raises `ConfigError` if no backend can compute an operation."""
    case = layers.op_case(types.model, types.kv, config.cache.block_size)
    case = replace(
        case,
        drafts=config.speculative is not None,
        experts=replace(case.experts, partial=config.parallel.expert_parallel),
        lora=LoraMatrices.of(config.lora),
    )
    execution = config.execution
    if execution.reproducible:
        return resolve_reproducible_ops(device, case)
    return resolve_ops(device, case, execution.backend, execution.op_backends)
