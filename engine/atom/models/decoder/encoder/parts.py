"""Modules that text encoders' layers and heads share: norms, tables, attention, MLPs.

Matrices of layers are divided over ranks; norms, tables and heads are whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from atom.model_ops.linear import Build, Linear
from atom.model_ops.placement import Placement
from atom.models.decoder.spec import EncoderSpec, LayerSpec
from atom.models.vision.parts import activation, empty

_OLD_NAMES = {"weight": "gamma", "bias": "beta"}  # of norms in BERT's first checkpoints


class HeadNorm(nn.Module):
    """A LayerNorm, perhaps without a bias, whose names another module gives."""

    def __init__(self, size: int, spec: EncoderSpec) -> None:
        super().__init__()
        self.weight = empty(size)
        self.bias = empty(size) if spec.norm_bias else None
        self._eps = spec.eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self._eps)

    def sources(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of both vectors, below this name."""
        for kind, whole in self.named_parameters():
            source = Placement.whole(f"{name}.{kind}", whole.data)
            yield replace(source, aliases=(f"{name}.{_OLD_NAMES[kind]}",))


class EncoderNorm(HeadNorm):
    """A LayerNorm under its own name."""

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of both vectors."""
        yield from self.sources(name)


class WholeMatrix(nn.Module):
    """A table of rows, or a matrix with a bias, that every rank has as a whole."""

    def __init__(self, rows: int, size: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = empty(rows, size)
        self.bias = empty(rows) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [.., size] → [.., rows]
        return F.linear(x, self.weight, self.bias)

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of each parameter."""
        for kind, whole in self.named_parameters():
            yield Placement.whole(f"{name}.{kind}", whole.data)


class EncoderMlp(nn.Module):
    """Computes down(activation(up(x))), or with a gate down(activation(gate(x)) · up(x))."""

    def __init__(self, layer: LayerSpec, spec: EncoderSpec, build: Build) -> None:
        super().__init__()
        *inner, down = layer.mlp
        self.inner = Linear(inner, build)
        self.down_proj = Linear((down,), build)
        self._activation = activation(spec.activation)
        self._gated, self._group = layer.facts.mlp.gated, build.group

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [T, H] → [T, H]
        inner = self.inner(x)
        if self._gated:
            gate, up = inner.chunk(2, dim=-1)
            inner = self._activation(gate).mul_(up)
            del gate, up  # twice the size of the product, and not needed behind it
        else:
            inner = self._activation(inner)
        return self._group.reduce(self.down_proj(inner))
