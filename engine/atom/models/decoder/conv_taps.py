"""ConvTaps: the weights of a short convolution, from wherever a checkpoint has its channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from atom.model_ops.linear_attention import ConvWeight
from atom.model_ops.placement import Placement


@dataclass(frozen=True, slots=True)
class ConvPart:
    """The name of a tensor of `channels`, a sibling of this module, and the rank's channels, first
    and end."""

    name: str
    channels: int
    own: tuple[int, int]


class ConvTaps(nn.Module):
    """Taps [C, W] and perhaps a bias [C] of the channels of all parts, in their order."""

    def __init__(
        self, parts: Sequence[ConvPart], width: int, *, bias: bool = False, has_silu: bool = True
    ) -> None:
        super().__init__()
        self._parts, self._width = parts, width
        channels = sum(part.own[1] - part.own[0] for part in parts)
        self.taps = nn.Parameter(torch.empty(channels, width), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(channels), requires_grad=False) if bias else None
        self._has_silu = has_silu

    @property
    def w(self) -> ConvWeight:
        """Return the operations' view of the weights."""
        bias = None if self.bias is None else self.bias.data
        return ConvWeight(self.taps.data, bias, self._has_silu)

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's sources of the channels."""
        beside, first = name.rpartition(".")[0], 0
        for part in self._parts:
            end = first + part.own[1] - part.own[0]
            tensor = f"{beside}.{part.name}"
            yield Placement(
                f"{tensor}.weight",
                (part.channels, 1, self._width),
                (part.own, (0, 1), (0, self._width)),
                self.taps.data[first:end],
            )
            if self.bias is not None:
                target = self.bias.data[first:end]
                yield Placement(f"{tensor}.bias", (part.channels,), (part.own,), target)
            first = end
