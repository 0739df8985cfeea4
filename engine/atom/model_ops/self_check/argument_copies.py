"""Copies of an operation's arguments for the reference, and the description of their shapes.

The reference gets wider numbers: half precision becomes float32, and a matrix is the one that the
checkpoint had before a backend prepared it. Weights in a quantised format, and everything that is
no tensor, are shared with the kernel's call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from atom.model_ops.values import LinearWeight
from atom.utils.forward_context import AttentionMetaData


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor, in float32 if it has half precision."""
    is_half = tensor.is_floating_point() and tensor.element_size() == 2
    return tensor.float() if is_half else tensor.clone()


def widened_weight(w: LinearWeight) -> LinearWeight:
    """Return a matrix for products with wider activations."""
    data = w.data.float() if w.scales is None else w.data
    bias = None if w.bias is None else w.bias.float()
    return replace(w, data=data, bias=bias, lora=mapped(w.lora, widened_weight))


def mapped(
    value: Any,
    weight: Callable[[LinearWeight], LinearWeight],
    tensor: Callable[[torch.Tensor], torch.Tensor] = widened,
) -> Any:
    """Copy a value and the tensors in it; `weight` gives the reference's matrix of each matrix."""
    if isinstance(value, torch.Tensor):
        return tensor(value)
    if isinstance(value, LinearWeight):
        return weight(value)
    if isinstance(value, dict):
        return {}  # what an operation keeps for later layers
    if isinstance(value, tuple):
        return tuple(mapped(each, weight, tensor) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        copies = {name: mapped(part, weight, tensor) for name, part in parts.items()}
        changed = {name: copy for name, copy in copies.items() if copy is not parts[name]}
        return replace(value, **changed) if changed else value
    return value


def weights_in(value: Any) -> Iterator[LinearWeight]:
    """Yield every matrix in a value."""
    if isinstance(value, LinearWeight):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from weights_in(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for part in dataclasses.fields(value):
            yield from weights_in(getattr(value, part.name))


def shape_of(value: Any) -> str:
    """Describe the shapes and formats in a value, equal for calls that need the same kernels."""
    if isinstance(value, torch.Tensor):
        return f"{_name(value.dtype)}{list(value.shape)}"
    if isinstance(value, LinearWeight):
        biased = " with bias" if value.bias is not None else ""
        return f"{value.format.value}{list(value.data.shape)}{biased}"
    if isinstance(value, AttentionMetaData):
        rows, tokens = len(value.query_starts) - 1, len(value.slot_mapping)
        decodes = value.num_decodes
        return f"{tokens} tokens of {rows} rows, {decodes} decodes"
    if isinstance(value, tuple):
        return ", ".join(filter(None, map(shape_of, value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = (shape_of(getattr(value, part.name)) for part in dataclasses.fields(value))
        return f"{type(value).__name__}({', '.join(filter(None, parts))})"
    return "" if value is None or callable(value) else str(value)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
