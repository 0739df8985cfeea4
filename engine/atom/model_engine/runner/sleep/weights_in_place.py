"""Other weights into the tensors that a model has: addresses, views and graphs stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from atom.config import Config
from atom.model_engine.runner.model_builder import ModelBuilder
from atom.model_engine.runner.speculation.speculation_setup import SpeculationSetup
from atom.models.decoder.causal_lm import held_bytes

# Of the device's free memory that second models may take; kernels and copies take the rest.
_PART_OF_FREE = 0.9

# Of adapters, which are loaded into their slots when they are needed.
_OF_ADAPTERS = ("lora_a", "lora_b")


def read_in_place(
    models: Sequence[nn.Module],
    builder: ModelBuilder,
    speculation: SpeculationSetup,
    config: Config,
) -> bool:
    """Read the weights of `config` into models on a device, by way of other models, which take as
    much memory for a while: the cache has none then. Return whether that was possible; if not,
    nothing has changed."""
    device = next(models[0].parameters()).device
    if device.type != "cpu":
        free = torch.cuda.mem_get_info(device)[0]
        if sum(map(held_bytes, models)) > _PART_OF_FREE * free:
            return False
    other = builder.make(speculation, device)
    builder.fill(other, speculation, config, lambda share: None)
    replaced = copy_weights(models, speculation.models(other))
    if device.type != "cpu":
        torch.cuda.synchronize()
    return replaced


def copy_weights(models: Sequence[nn.Module], others: Sequence[nn.Module]) -> bool:
    """Copy every parameter and buffer of `others`, which were loaded and prepared in the same way,
    into those of `models`. Return whether they have equal shapes; if not (backends' preparation may
    depend on values), nothing has changed."""
    pairs = []
    for model, other in zip(models, others, strict=True):
        kept, read = _tensors(model), _tensors(other)
        if kept.keys() != read.keys():
            return False
        pairs += [(kept[name], read[name]) for name in kept]
    if not all(_alike(own, new) for own, new in pairs):
        return False
    for own, new in pairs:
        own.copy_(new)
    return True


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    named = (*model.named_parameters(), *model.named_buffers())
    return {name: tensor for name, tensor in named if name.rpartition(".")[2] not in _OF_ADAPTERS}


def _alike(own: torch.Tensor, new: torch.Tensor) -> bool:
    layouts = [(each.shape, each.stride(), each.dtype, each.device) for each in (own, new)]
    return layouts[0] == layouts[1]
