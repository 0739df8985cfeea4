"""The vendor's library, for the sizes at which it was found to sum in the kernel's order.

A library chooses its method by the number of rows, and may split the inputs over programs. If it
does not split them, it sums them front to back as the kernel of linear.py does, and it is faster
with many rows. So when a matrix is loaded, its shape is multiplied by both, with a few numbers of
rows. The numbers that gave the same bits are kept, and rows are padded to one of them. The same
numbers, summed in another order, verify that a different order would show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from atom.model_ops.values import LinearWeight

# Numbers of rows that are tried; of a tall matrix as many as keep its product small.
_SIZES = (64, 128, 256, 384, 512, 768, 1024, 1536, 2048)
_MOST_NUMBERS = 2**26


@dataclass(frozen=True, slots=True)
class _Shape:
    """The properties, besides rows, that the library's choice of a kernel may depend on."""

    device: torch.device
    dtype: torch.dtype
    outputs: int
    inputs: int
    has_bias: bool


class Multiply(Protocol):
    """The kernel's product of x [T, in] with a matrix: summed front to back, or in two halves of
    the inputs."""

    def __call__(self, x: torch.Tensor, w: LinearWeight, *, in_two: bool) -> torch.Tensor: ...


# Written while weights are loaded, read by steps: shape → numbers of rows.
_alike: dict[_Shape, tuple[int, ...]] = {}


def _shape(w: LinearWeight) -> _Shape:
    return _Shape(w.data.device, w.data.dtype, w.outputs, w.inputs, w.bias is not None)


def sizes_alike(w: LinearWeight) -> tuple[int, ...]:
    """Return the numbers of rows at which the library's product is the kernel's, ascending."""
    return _alike.get(_shape(w), ())


def note_sizes_alike(w: LinearWeight, multiply: Multiply) -> None:
    """Try a matrix of this shape, unless one was tried."""
    shape = _shape(w)
    if shape in _alike:
        return
    draw = torch.Generator(w.data.device).manual_seed(0)
    most = max(_SIZES[0], _MOST_NUMBERS // w.outputs)
    sizes = [size for size in _SIZES if size <= most]
    x = torch.randn((sizes[-1], w.inputs), generator=draw, dtype=w.data.dtype, device=w.data.device)
    few = x[: sizes[0]]
    if torch.equal(multiply(few, w, in_two=True), multiply(few, w, in_two=False)):
        _alike[shape] = ()  # all zeros, or so few inputs that no order would show
        return
    own = multiply(x, w, in_two=False)
    _alike[shape] = tuple(
        size for size in sizes if torch.equal(F.linear(x[:size], w.data, w.bias), own[:size])
    )


def library_linear(x: torch.Tensor, w: LinearWeight, sizes: tuple[int, ...]) -> torch.Tensor:
    """Multiply x [T, in], at most as many rows as the last of `sizes`, filled up to one of them."""
    rows = x.shape[0]
    size = next(size for size in sizes if size >= rows)
    if size > rows:
        # The content of the padding rows does not affect the others.
        filled = x.new_empty((size, x.shape[1]))
        filled[:rows] = x
        x = filled
    return F.linear(x, w.data, w.bias)[:rows]
