"""Operations and modules that image encoders share: matrices, norms, attention within pictures.

Encoders are small beside the decoder and are on every rank as a whole, in the model's own type.
Their tensors are parameters under the names of checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from atom.errors import ModelError
from atom.model_ops.activations import Activation
from atom.model_ops.backends.interface import Ops
from atom.model_ops.placement import Placement
from atom.sizing.vision.facts import Grid

Elementwise = Callable[[torch.Tensor], torch.Tensor]
Rotation = tuple[torch.Tensor, torch.Tensor]  # cosines and sines [T, D / 2] float32
Runs = Sequence[tuple[int, int]]  # neighbouring pictures of equal sizes: how many, patches of each

_ACTIVATIONS: dict[str, Elementwise] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "relu": F.relu,
    "tanh": torch.tanh,
}


def activation(name: str) -> Elementwise:
    """Return an activation by its name in config.json. Raises `ModelError` for an unknown one."""
    if name not in _ACTIVATIONS:
        raise ModelError(
            f"config.json: the encoder's activation {name!r} is not supported; known: "
            f"{', '.join(_ACTIVATIONS)}; --language-model-only serves the text part of a model "
            "that reads images"
        )
    return _ACTIVATIONS[name]


class Dense(nn.Module):
    """A matrix, and perhaps a bias. shape: of the checkpoint's tensor, whose first dimension is the
    outputs; a convolution of separate patches is a matrix of its flattened kernels. order: the
    checkpoint's element at each place of a head, if they differ."""

    def __init__(self, *shape: int, bias: bool = True, order: torch.Tensor | None = None) -> None:
        super().__init__()
        self.order = order
        self.weight = empty(*shape)
        self.bias = empty(shape[0]) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [.., inputs] → [.., outputs]
        return F.linear(x, self.weight.flatten(1), self.bias)


class JoinedDense(nn.Module):
    """Matrices of the same inputs, one below the other: one product computes all of them. parts:
    their names in checkpoints, beside this module's name, and their outputs; orders: of some, the
    checkpoint's element at each place of a head."""

    def __init__(
        self,
        inputs: int,
        parts: Mapping[str, int],
        *,
        bias: bool = True,
        orders: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.parts, self._orders = dict(parts), dict(orders or {})
        self.weight = empty(sum(parts.values()), inputs)
        self.bias = empty(sum(parts.values())) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [.., inputs] → [.., all outputs]
        return F.linear(x, self.weight, self.bias)

    def sources(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of every part. name: of this module."""
        beside = name.rpartition(".")[0]
        for kind, whole in self.named_parameters():
            targets = whole.data.split(list(self.parts.values()))
            for part, target in zip(self.parts, targets, strict=True):
                source = Placement.whole(f"{beside}.{part}.{kind}", target)
                yield replace(source, order=self._orders.get(part))


class GatedMlp(nn.Module):
    """An MLP with a gate, without biases: down(activation(gate) · up)."""

    def __init__(self, size: int, inner: int, name: str, ops: Ops) -> None:
        """name: of the activation."""
        super().__init__()
        self.gate_up_proj = JoinedDense(size, {"gate_proj": inner, "up_proj": inner}, bias=False)
        self.down_proj = Dense(size, inner, bias=False)
        self._activation, self._ops, self._is_silu = activation(name), ops, name == "silu"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = self.gate_up_proj(x)
        if self._is_silu:  # which every backend has
            return cast(torch.Tensor, self.down_proj(self._ops.act_and_mul(both, Activation.SILU)))
        gate, up = both.chunk(2, dim=-1)
        return cast(torch.Tensor, self.down_proj(self._activation(gate) * up))


class PlainMlp(nn.Module):
    """An MLP with biases: fc2(activation(fc1))."""

    def __init__(self, size: int, inner: int, name: str) -> None:
        """name: of the activation."""
        super().__init__()
        self.fc1, self.fc2 = Dense(inner, size), Dense(size, inner)
        self._activation = activation(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.fc2(self._activation(self.fc1(x))))


class LayerNorm(nn.Module):
    """A LayerNorm with a bias."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.bias = empty(size), empty(size)
        self._eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self._eps)


class RootNorm(nn.Module):
    """An RMS norm, computed in float32. order: as of Dense."""

    def __init__(self, size: int, eps: float, order: torch.Tensor | None = None) -> None:
        super().__init__()
        self.order = order
        self.weight = empty(size)
        self._eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self._eps)


class OffsetNorm(nn.Module):
    """An RMS norm in float32 whose stored weights are offsets from 1 (Gemma 3)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = empty(size)
        self._eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = 1.0 + self.weight.float()
        return F.rms_norm(x.float(), weight.shape, weight, self._eps).to(x.dtype)


class Table(nn.Module):
    """A table of learned rows."""

    def __init__(self, rows: int, size: int) -> None:
        super().__init__()
        self.weight = empty(rows, size)


def attended(heads: Sequence[torch.Tensor], runs: Runs, scale: float | None = None) -> torch.Tensor:
    """Return the heads' results [T, heads · D] of pictures whose patches all see each other. heads:
    queries, keys and values [T, heads, D]; scale: of the products, None for 1 / √D. Pictures of
    equal sizes attend together."""
    sizes = [pictures * patches for pictures, patches in runs]
    found = []
    of_runs = zip(*(each.split(sizes) for each in heads), strict=True)
    for parts, (pictures, _) in zip(of_runs, runs, strict=True):
        q, k, v = (each.unflatten(0, (pictures, -1)).transpose(1, 2) for each in parts)
        results = F.scaled_dot_product_attention(
            q, k, v, scale=scale, enable_gqa=q.shape != k.shape
        )
        found.append(results.transpose(1, 2).flatten(2).flatten(0, 1))
    return found[0] if len(found) == 1 else torch.cat(found)


def rotated_attention(
    joined: torch.Tensor, count: int, by: Rotation, runs: Runs, ops: Ops
) -> torch.Tensor:
    """Rotate queries and keys in place, and return the heads' results [T, heads · D], as `attended`
    does. joined: queries, keys and values [T, 3 · heads · D], one after the other; count: of
    heads."""
    heads = joined.unflatten(1, (3 * count, -1))
    ops.rotate_heads(heads[:, : 2 * count], *by)
    return attended(heads.split(count, dim=1), runs)


def patches_of(pixels: torch.Tensor, size: int) -> torch.Tensor:
    """Cut pictures [n, channels, height, width] into square patches of `size` pixels [n, patches,
    numbers], row by row."""
    cut = pixels.unflatten(3, (-1, size)).unflatten(2, (-1, size))
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def places_of(grid: Grid, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the row and column [patches] of each patch, row by row."""
    _, height, width = grid
    rows = torch.arange(height, device=device).repeat_interleave(width)
    return rows, torch.arange(width, device=device).repeat(height)


def frequencies_of(theta: float, size: int, device: torch.device) -> torch.Tensor:
    """Return the frequencies [size / 2] float32 by which `size` elements of a head rotate. theta:
    base of the rotation."""
    places = torch.arange(0, size, 2, dtype=torch.float, device=device) / size
    return 1.0 / theta**places


def rotation(
    rows: torch.Tensor, columns: torch.Tensor, frequencies: tuple[torch.Tensor, torch.Tensor]
) -> Rotation:
    """Compute the rotation of patches at rows and columns [T]. frequencies: of rows and of columns,
    D / 4 float32 each."""
    angles = torch.cat(
        [
            torch.outer(places.float(), each)
            for places, each in zip((rows, columns), frequencies, strict=True)
        ],
        dim=-1,
    )
    return angles.cos(), angles.sin()


def equal_runs(grids: Sequence[Grid]) -> list[tuple[Grid, int]]:
    """Return each run of equal neighbouring grids: the grid, and the number of its pictures."""
    return [(grid, len(list(same))) for grid, same in groupby(grids)]


def by_grid(
    x: torch.Tensor, runs: Sequence[tuple[Grid, int]]
) -> Iterator[tuple[torch.Tensor, Grid]]:
    """Yield the patches of each run of pictures, with their grid. x [T, ..]; runs: of
    `equal_runs`."""
    parts = x.split([count * grid[1] * grid[2] for grid, count in runs])
    for part, (grid, _) in zip(parts, runs, strict=True):
        yield part, grid


def repeated(rotations: Sequence[tuple[Rotation, int]]) -> Rotation:
    """Join rotations of pictures, each repeated for its number of equal pictures."""
    cos, sin = (
        torch.cat([each[part].repeat(count, 1) for each, count in rotations]) for part in (0, 1)
    )
    return cos, sin


def empty(*shape: int) -> nn.Parameter:
    """Return an empty parameter that stands under its own name in a checkpoint."""
    return nn.Parameter(torch.empty(shape), requires_grad=False)
