"""CacheLayout: the tensors that one attention layer caches per block of tokens."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class BlockTensor:
    """A tensor of a layer's cache: its shape per block of tokens."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The tensors of a layer, each [blocks, *shape]. Layers of equal layouts may share memory, as
    long as no block is in use by both."""

    tensors: tuple[BlockTensor, ...]


def present(cache: Any) -> tuple[torch.Tensor, ...]:
    """Return the tensors of a layer's cache, a dataclass of them, without the missing ones."""
    found = (getattr(cache, each.name) for each in fields(cache))
    return tuple(tensor for tensor in found if tensor is not None)
