"""CachedAttention: what the runner asks of every kind of attention layer.

The layer says what it keeps of a block of tokens, the runner allocates it, once for measuring and
once for good. What is computed with it is the kind's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import nn

from atom.model_ops.attention.cache_layout import CacheLayout
from atom.model_ops.backends.interface import Ops
from atom.utils.forward_context import AttentionMetaData, get_forward_context


class CachedAttention(nn.Module, ABC):
    """An attention layer of some group of layers."""

    def __init__(self, ops: Ops) -> None:
        super().__init__()
        self._ops = ops
        self._group = 0
        self.release()

    @abstractmethod
    def cache_layout(self, block_size: int, dtype: torch.dtype) -> CacheLayout:
        """Return what is kept of a block of tokens."""

    @abstractmethod
    def hold(self, tensors: Sequence[torch.Tensor]) -> None:
        """Use these tensors, [blocks, *shape] of the layout each."""

    @abstractmethod
    def release(self) -> None:
        """Hold no cache until `bind` is called again."""

    def bind(self, tensors: Sequence[torch.Tensor], group: int) -> None:
        """Use these tensors, and the step's metadata of `group`."""
        self.hold(tensors)
        self._group = group

    @property
    def _step(self) -> AttentionMetaData:
        """Return where this step's tokens lie."""
        return get_forward_context().attention[self._group]
