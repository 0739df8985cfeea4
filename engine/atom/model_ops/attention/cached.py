"""The runner's interface to every layer that caches a sequence.

CachedAttention caches tokens: it declares the tensors of a block of tokens. StateLayer keeps a
state: it declares the tensors of a sequence. The runner allocates either, once for profiling and
once for serving. The subclasses compute with the tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import nn

from atom.model_ops.attention.cache_layout import CacheLayout
from atom.model_ops.backends.interface import Ops
from atom.utils.forward_context import AttentionMetaData, get_forward_context


class CachedLayer(nn.Module, ABC):
    """A layer that keeps something of a sequence, as a group of layers does."""

    def __init__(self, ops: Ops) -> None:
        super().__init__()
        self._ops = ops
        self._group = 0
        self.release()

    @abstractmethod
    def hold(self, tensors: Sequence[torch.Tensor]) -> None:
        """Store the given tensors, which have the shapes that the layer declared."""

    @abstractmethod
    def release(self) -> None:
        """Drop the tensors until `hold` sets new ones."""

    @property
    def _step(self) -> AttentionMetaData:
        """Return the metadata of this step's tokens."""
        return get_forward_context().attention[self._group]


class CachedAttention(CachedLayer):
    """An attention layer of some group of layers."""

    @abstractmethod
    def cache_layout(self, block_size: int, dtype: torch.dtype) -> CacheLayout:
        """Return the layout of a block of tokens; the layer holds [blocks, *shape] of each
        tensor."""

    @abstractmethod
    def cached_tensors(self) -> tuple[torch.Tensor, ...]:
        """Return the tensors that the layer holds, in the order of its layout."""

    @property
    def tensors_by_head(self) -> int:
        """Return how many of these, from the first on, have parts of each KV head. Every rank has
        the others whole."""
        return 0

    def bind(self, tensors: Sequence[torch.Tensor], group: int) -> None:
        """Bind the layer to these tensors, and to the step's metadata of `group`."""
        self.hold(tensors)
        self._group = group


class StateLayer(CachedLayer):
    """A layer that keeps a state of each sequence in its slot, copies of some states in
    checkpoints, and the inputs of rows' drafts. Rows and their slots are the same in the metadata
    of every group."""

    _running: Sequence[torch.Tensor] = ()
    _saved: Sequence[torch.Tensor] = ()
    _drafts: Sequence[torch.Tensor] = ()

    def keep(
        self,
        running: Sequence[torch.Tensor],
        saved: Sequence[torch.Tensor],
        drafts: Sequence[torch.Tensor] = (),
    ) -> None:
        """Bind the layer to its tensors of slots, its saved states [checkpoints, *shape], and its
        drafts' inputs."""
        self.hold(running)
        self._running, self._saved, self._drafts = running, saved, drafts

    def saved_tensors(self) -> Sequence[torch.Tensor]:
        """Return the tensors of the saved states, [checkpoints, *shape] each."""
        return self._saved

    def save(self, slots: torch.Tensor, checkpoints: torch.Tensor) -> None:
        """Copy the states of slots [n] to checkpoints [n], int64."""
        for running, saved in zip(self._running, self._saved, strict=True):
            saved[checkpoints] = running[slots]

    def load(self, slots: torch.Tensor, checkpoints: torch.Tensor) -> None:
        """Copy checkpoints [n] to the states of slots [n]."""
        for running, saved in zip(self._running, self._saved, strict=True):
            running[slots] = saved[checkpoints]

    @abstractmethod
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of a sequence's state, in float32; the layer holds [slots, *shape] of
        each."""

    @abstractmethod
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of a draft's inputs, in float32; the layer holds [slots, drafts,
        *shape] of each."""
