"""Values of attention to a window and to compressed entries (DeepSeek V4) that its layers and
operations exchange. Shapes are as in values.py."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from atom.model_ops.index_values import IndexShape
from atom.model_ops.values import NormWeight
from atom.sizing.mask_rule import MaskRule


@dataclass(frozen=True, slots=True)
class CompressedShape:
    """The heads on this rank of a layer that attends to a window and to entries (DeepSeek-V4). A
    token, and an entry, has one key, which all heads share and which is its value; the last
    rope_dim elements of a head rotate, neighbours in pairs. scale multiplies q·k; mask: of the
    window; rate: tokens that an entry sums up, 0 without entries; index: of an indexer that selects
    entries, in a layer whose entries also sum up the tokens of the previous entry, None if all
    entries are attended to. sinks [Hq] float32: see AttentionShape."""

    num_heads: int
    head_dim: int
    rope_dim: int
    scale: float
    mask: MaskRule
    rate: int = 0
    index: IndexShape | None = None
    sinks: torch.Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def series(self) -> int:
        """Count in how many entries a token is summed up."""
        return 1 if self.index is None else 2

    @property
    def index_dim(self) -> int:
        return 0 if self.index is None else self.index.dim


@dataclass(frozen=True, slots=True)
class EntryWeight:
    """The parameters that make entries of summed tokens: position_bias [rate, series · D] float32,
    the weight of each place of an entry, and the norm of their sum."""

    position_bias: torch.Tensor
    norm: NormWeight


@dataclass(frozen=True, slots=True)
class CompressedLayer:
    """The shape and parameters of a layer's attention. entries, index: of entries' keys and of the
    indexer's keys, if there are any."""

    shape: CompressedShape
    entries: EntryWeight | None = None
    index: EntryWeight | None = None


@dataclass(frozen=True, slots=True)
class CompressedTokens:
    """A step's tokens, not rotated yet: q [T, Hq, D], and the cached elements of each, kept [T, W]:
    its key [D], then its contributions to entries [series · D] and their weights [series · D], then
    the same of the indexer's. asking [T, heads, dim] and weights [T, heads]: of the indexer."""

    q: torch.Tensor
    kept: torch.Tensor
    asking: torch.Tensor | None = None
    weights: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class CompressedCache:
    """A layer's cache: window [N, S, W] of tokens; entries [N, E, D] and, of the indexer, index [N,
    E, dim] of the entries that are complete in a block, in their order. Not contiguous."""

    window: torch.Tensor
    entries: torch.Tensor | None = None
    index: torch.Tensor | None = None

    @property
    def block_size(self) -> int:
        return self.window.shape[1]
