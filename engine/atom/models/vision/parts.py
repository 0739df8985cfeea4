"""Operations and modules that image encoders share: matrices, norms, attention within one image.

Encoders are small beside the decoder and are on every rank as a whole, in the model's own type.
Their tensors are parameters under the names of checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from atom.errors import ModelError

Activation = Callable[[torch.Tensor], torch.Tensor]

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "relu": F.relu,
}


def activation(name: str) -> Activation:
    """Return an activation by its name in config.json. Raises `ModelError` for an unknown one."""
    if name not in _ACTIVATIONS:
        raise ModelError(
            f"config.json: the image encoder's activation {name!r} is not supported; known: "
            f"{', '.join(_ACTIVATIONS)}; --language-model-only serves the text part"
        )
    return _ACTIVATIONS[name]


class Dense(nn.Module):
    """A matrix, and perhaps a bias. shape: of the checkpoint's tensor, whose first dimension is the
    outputs; a convolution of separate patches is a matrix of its flattened kernels."""

    def __init__(self, *shape: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = _empty(*shape)
        self.bias = _empty(shape[0]) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [.., inputs] → [.., outputs]
        return F.linear(x, self.weight.flatten(1), self.bias)


class LayerNorm(nn.Module):
    """A LayerNorm with a bias."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.bias = _empty(size), _empty(size)
        self._eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self._eps)


class RootNorm(nn.Module):
    """An RMS norm, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = _empty(size)
        self._eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._eps)
        return self.weight * normed.to(x.dtype)


class Table(nn.Module):
    """A table of learned rows."""

    def __init__(self, rows: int, size: int) -> None:
        super().__init__()
        self.weight = _empty(rows, size)


def attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """Return the heads' results [T, heads · D] of one picture, whose T patches all see each other.
    q, k, v [T, heads, D]; cos, sin [T, D] float32 rotate queries and keys, each element i with i +
    D / 2."""
    heads = [_turned(each, cos, sin).transpose(0, 1) for each in (q, k)]
    found = F.scaled_dot_product_attention(
        heads[0].unsqueeze(0), heads[1].unsqueeze(0), v.transpose(0, 1).unsqueeze(0)
    )
    return found[0].transpose(0, 1).flatten(1)


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (wide * cos.unsqueeze(1) + turned * sin.unsqueeze(1)).to(x.dtype)


def rotation(
    rows: torch.Tensor, columns: torch.Tensor, frequencies: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute cosines and sines [T, D] float32 of patches at rows and columns [T]. frequencies: of
    rows and of columns, D / 4 float32 each."""
    angles = [
        torch.outer(places.float(), each)
        for places, each in zip((rows, columns), frequencies, strict=True)
    ]
    half = torch.cat(angles, dim=-1)
    whole = torch.cat((half, half), dim=-1)
    return whole.cos(), whole.sin()


def _empty(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape), requires_grad=False)
