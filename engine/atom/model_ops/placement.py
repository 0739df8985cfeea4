"""Placement: the part of a checkpoint's tensor that fills a part of a parameter.

Layers declare placements (`placements`), the loader carries them out: no other code knows both the
names of checkpoints and the shapes of parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def checkpoint_name(module: str, own: str, depth: int | None = None) -> str:
    """Return the checkpoint's name of the blueprint's `own` below its layer. `module` is the name
    here, with as many parts below the layer as `own` has, or `depth`."""
    parts = own.count(".") + 1 if depth is None else depth
    return ".".join([*module.split(".")[:-parts], own])


@dataclass(frozen=True, slots=True)
class Placement:
    """Fill `target` from a checkpoint's tensor.

    name: the tensor's; shape: required by the model's configuration; region: first and end of the
    read part in each dimension (a rank reads only its part); target: a view whose elements are the
    region's in their order, whatever its shape; order: index of the region's rows, by head, in the
    order in which they are stored here. aliases: other names of the same tensor; dtypes: that the
    tensor may have; convert: from the read to the stored values, before the order; instead: another
    tensor, which a checkpoint may have in this one's place.
    """

    name: str
    shape: tuple[int, ...]
    region: tuple[tuple[int, int], ...]
    target: torch.Tensor
    order: torch.Tensor | None = None
    aliases: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] = FLOATS
    convert: Callable[[torch.Tensor], torch.Tensor] | None = None
    instead: Placement | None = None

    @property
    def choices(self) -> tuple[Placement, ...]:
        """Return the alternative placements; a checkpoint has the tensor of one of them."""
        return (self,) if self.instead is None else (self, *self.instead.choices)

    @property
    def companions(self) -> tuple[Placement, ...]:
        """Return the placements of the tensors that are read together with this one, which alone
        says nothing; their targets are not filled by themselves."""
        return ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names that the tensor may have in a checkpoint."""
        return (self.name, *self.aliases)

    @classmethod
    def whole(cls, name: str, target: torch.Tensor) -> Placement:
        """Fill `target` from a tensor of its shape."""
        shape = tuple(target.shape)
        return cls(name, shape, tuple((0, size) for size in shape), target)

    def fill(self, part: torch.Tensor, *companions: torch.Tensor) -> None:
        """Copy the part that was read, with a conversion between floating-point dtypes. companions:
        the parts of those placements that were read."""
        if self.convert is not None:
            part = self.convert(part)
        self.target.copy_(in_order(part, self.order).reshape(self.target.shape))


def in_order(rows: torch.Tensor, order: torch.Tensor | None) -> torch.Tensor:
    """Put the rows of every head in `order`; None leaves them."""
    if order is None:
        return rows
    by_head = rows.unflatten(0, (-1, len(order)))
    return by_head[:, order.to(rows.device)].flatten(0, 1)
