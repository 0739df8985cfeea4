"""Hyper-connections between residual streams (arXiv 2512.24880): the share of each stream in a
block's input, the share of the block's result in each stream, and the mixing of the streams.

All weights are float32, whatever the model's dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from atom.model_ops.placement import Placement
from atom.models.decoder.spec import StreamsSpec


@dataclass(frozen=True, slots=True)
class Mixing:
    """The mixing of a block's result with the n streams: given [T, n], the share of the result for
    each stream, and mixed [T, n, n], the share of each stream (first) for each stream, both
    float32."""

    given: torch.Tensor
    mixed: torch.Tensor

    def of(self, tokens: torch.Tensor) -> Mixing:
        """Return the mixing of these tokens [T']."""
        return Mixing(self.given[tokens], self.mixed[tokens])

    def join(self, streams: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        """Add a block's result [T, H] to the streams [T, n, H] → [T, n, H]."""
        dtype = streams.dtype
        given = self.given.to(dtype).unsqueeze(-1) * result.unsqueeze(-2)
        return given + torch.matmul(self.mixed.to(dtype).transpose(-1, -2), streams)


class HyperConnection(nn.Module):
    """Mix the streams before and after one block, attention or experts."""

    def __init__(self, spec: StreamsSpec, hidden_size: int) -> None:
        super().__init__()
        self._spec = spec
        count = spec.count
        self.fn = _floats(count * (count + 2), count * hidden_size)
        self.base = _floats(count * (count + 2))
        self.scale = _floats(3)

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's sources of the parameters."""
        for kind in ("fn", "base", "scale"):
            yield Placement.whole(f"{name}.{kind}", getattr(self, kind).data)

    def forward(self, streams: torch.Tensor) -> tuple[torch.Tensor, Mixing]:
        """Compute the block's input [T, H] from streams [T, n, H], and the mixing of its result."""
        count, eps = self._spec.count, self._spec.eps
        projected = _projected(streams, self.fn, self._spec)
        sizes = [count, count, count * count]
        taken, given, mixed = projected.split(sizes, dim=1)
        bases, scales = self.base.split(sizes), self.scale.unbind()
        taken = torch.sigmoid(taken * scales[0] + bases[0]) + eps
        given = 2 * torch.sigmoid(given * scales[1] + bases[1])
        mixed = (mixed * scales[2] + bases[2]).unflatten(1, (count, count))
        return _taken(taken, streams), Mixing(given, self._doubly_stochastic(mixed))

    def _doubly_stochastic(self, weights: torch.Tensor) -> torch.Tensor:
        """Make rows and columns of weights [T, n, n] sum to 1, in turn (Sinkhorn and Knopp), so
        that no stream grows from layer to layer."""
        eps = self._spec.eps
        mixed = weights.softmax(dim=-1) + eps
        mixed = mixed / (mixed.sum(dim=-2, keepdim=True) + eps)
        for _ in range(self._spec.iterations - 1):
            mixed = mixed / (mixed.sum(dim=-1, keepdim=True) + eps)
            mixed = mixed / (mixed.sum(dim=-2, keepdim=True) + eps)
        return mixed


class HyperHead(nn.Module):
    """Join the streams after the last layer."""

    def __init__(self, spec: StreamsSpec, hidden_size: int) -> None:
        super().__init__()
        self._spec = spec
        self.hc_fn = _floats(spec.count, spec.count * hidden_size)
        self.hc_base = _floats(spec.count)
        self.hc_scale = _floats(1)

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's sources of the parameters."""
        for kind in ("hc_fn", "hc_base", "hc_scale"):
            yield Placement.whole(f"{name}.{kind}", getattr(self, kind).data)

    def forward(self, streams: torch.Tensor) -> torch.Tensor:  # [T, n, H] → [T, H]
        projected = _projected(streams, self.hc_fn, self._spec)
        taken = torch.sigmoid(projected * self.hc_scale + self.hc_base) + self._spec.eps
        return _taken(taken, streams)


def _floats(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=torch.float32), requires_grad=False)


def _projected(streams: torch.Tensor, fn: torch.Tensor, spec: StreamsSpec) -> torch.Tensor:
    """Project all streams of a token together, at unit length."""
    flat = streams.flatten(1).float()
    flat = flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + spec.norm_eps)
    return F.linear(flat, fn)


def _taken(weights: torch.Tensor, streams: torch.Tensor) -> torch.Tensor:
    """Sum up streams [T, n, H] by weights [T, n] → [T, H]."""
    return (weights.unsqueeze(-1) * streams).sum(dim=1).to(streams.dtype)
