"""CacheLayout: the tensors that one attention layer caches per block of tokens."""

from __future__ import annotations

from dataclasses import dataclass

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
