"""The matrices that sentence-transformers has behind a pooling, read from folders of their own.

They are small, whole on every rank, and computed in float32 on the rows that a step pools.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from atom.config import ModelConfig
from atom.errors import ModelError
from atom.model_loader.load_plan import opened
from atom.pooling_config import DenseLayer

Dense = Callable[[torch.Tensor], torch.Tensor]

_ACTIVATIONS: dict[str, Dense] = {"tanh": torch.tanh, "relu": F.relu, "gelu": F.gelu}


def dense_layers(model: ModelConfig, device: torch.device) -> tuple[Dense, ...]:
    """Read the matrices of a model's pooling, in their order. Raises `ModelError` for one that does
    not fit to the states before it, or that its file does not have."""
    assert model.pooling is not None
    size, found = model.facts.hidden_size, []
    for layer in model.pooling.dense:
        if layer.inputs != size:
            raise ModelError(
                f"{layer.file.parent / 'config.json'}: in_features is {layer.inputs}, and vectors "
                f"before it have {size} numbers; use the files that came with the weights"
            )
        found.append(_read(layer, device, dummy=model.load_dummy))
        size = layer.outputs
    return tuple(found)


def _read(layer: DenseLayer, device: torch.device, *, dummy: bool) -> Dense:
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (layer.outputs, layer.inputs)}
    if layer.bias:
        shapes["linear.bias"] = (layer.outputs,)
    if dummy:
        tensors = {name: torch.zeros(shape, device=device) for name, shape in shapes.items()}
    else:
        tensors = _tensors(layer, shapes, device)
    weight, bias = tensors["linear.weight"], tensors.get("linear.bias")
    activation = _ACTIVATIONS.get(layer.activation)

    def dense(x: torch.Tensor) -> torch.Tensor:  # [n, inputs] → [n, outputs] float32
        product = F.linear(x, weight, bias)
        return product if activation is None else activation(product)

    return dense


def _tensors(
    layer: DenseLayer, shapes: dict[str, tuple[int, ...]], device: torch.device
) -> dict[str, torch.Tensor]:
    with opened(layer.file) as shard:
        names = set(shard.keys())
        for name, shape in shapes.items():
            got = tuple(shard.get_slice(name).get_shape()) if name in names else None
            if got != shape:
                raise ModelError(
                    f"{layer.file}: {name} is {'missing' if got is None else list(got)}, and the "
                    f"folder's config.json calls for {list(shape)}; download the folder again"
                )
        return {name: shard.get_tensor(name).to(device, torch.float32) for name in shapes}
