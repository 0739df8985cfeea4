"""Placement: which part of a checkpoint's tensor fills which part of a parameter.

Layers say it (`placements`), the loader carries it out: nothing else knows names of checkpoints and
shapes of parameters at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def checkpoint_name(module: str, own: str, depth: int | None = None) -> str:
    """The name in a checkpoint of what the blueprint calls `own` below its layer. `module` is the
    name here, as many parts below the layer as `own` has, or `depth`."""
    parts = own.count(".") + 1 if depth is None else depth
    return ".".join([*module.split(".")[:-parts], own])


@dataclass(frozen=True, slots=True)
class Placement:
    """Fill `target` from a checkpoint's tensor.

    name: the tensor's; shape: what the model's configuration calls for; region: first and end in
    each dimension of what is read (a rank reads its part alone); target: a view whose elements are
    the region's in their order, whatever its shape; order: index of the region's rows, by head, in
    the order in which they are stored here. aliases: other names of the same tensor; dtypes: that
    that it may have; convert: what was read into what is stored, before the order; instead: the
    another tensor, which a checkpoint may have in this one's place.
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
        """List the placements of which a checkpoint has the tensor of one."""
        return (self,) if self.instead is None else (self, *self.instead.choices)

    @property
    def names(self) -> tuple[str, ...]:
        """List the names under which the tensor may stand in a checkpoint."""
        return (self.name, *self.aliases)

    @classmethod
    def whole(cls, name: str, target: torch.Tensor) -> Placement:
        """Fill `target` from a tensor of its shape."""
        shape = tuple(target.shape)
        return cls(name, shape, tuple((0, size) for size in shape), target)

    def fill(self, part: torch.Tensor) -> None:
        """Copy the part that was read, with a conversion between floating-point dtypes."""
        if self.convert is not None:
            part = self.convert(part)
        self.target.copy_(in_order(part, self.order).reshape(self.target.shape))


def in_order(rows: torch.Tensor, order: torch.Tensor | None) -> torch.Tensor:
    """Put the rows of every head in `order`; None leaves them."""
    if order is None:
        return rows
    by_head = rows.unflatten(0, (-1, len(order)))
    return by_head[:, order.to(rows.device)].flatten(0, 1)
