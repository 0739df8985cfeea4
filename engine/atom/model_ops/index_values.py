"""Values of an indexer, which selects the tokens or spans that attention reads: shape, tokens of a
step, cache. Letters as in values.py."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class IndexShape:
    """An indexer of sparse attention (DeepSeek-V3.2): num_heads queries of `dim` elements, of which
    the first rope_dim rotate, score every earlier token; the top_k highest are attended to.
    interleaved: pairs that rotate are neighbours in a checkpoint (GLM-5)."""

    num_heads: int
    dim: int
    rope_dim: int
    top_k: int
    interleaved: bool = False

    @property
    def scale(self) -> float:
        """Compute the factor of a score: of each product, and of the sum over heads."""
        return (self.dim * self.num_heads) ** -0.5


@dataclass(frozen=True, slots=True)
class SpanIndexShape:
    """An indexer of grouped heads on this rank (MiniMax-M3): num_heads queries of `dim` elements,
    one for each KV head, of which the first rope_dim rotate. Spans of `span` tokens count by the
    highest score in them; the top_k of these are attended to, the `newest` ones in any case."""

    num_heads: int
    dim: int
    rope_dim: int
    span: int
    top_k: int
    newest: int

    @property
    def tokens(self) -> int:
        """Return the longest context of which all spans are selected."""
        return self.span * self.top_k


@dataclass(frozen=True, slots=True)
class IndexTokens:
    """A step's tokens in an indexer, not rotated yet: q [T, heads, dim], the cached keys [T, dim],
    and the weight of each head, weights [T, heads]."""

    q: torch.Tensor
    keys: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True, slots=True)
class SpanTokens:
    """A step's tokens in an indexer of spans, normed and not rotated yet: q [T, heads, dim], and
    the cached keys [T, dim]."""

    q: torch.Tensor
    keys: torch.Tensor


@dataclass(frozen=True, slots=True)
class IndexCache:
    """A layer's cache of an indexer: keys [N, S, dim], contiguous. In fp8 with their scales [N, S]
    float32: the key is keys × scale."""

    keys: torch.Tensor
    scale: torch.Tensor | None = None

    @property
    def block_size(self) -> int:
        return self.keys.shape[1]
