"""ImageEncoder: what every image encoder is to the decoder, and the outputs that it keeps.

A family's encoder turns the pixels of one image into an output per token (`encode`). The outputs
lie in one buffer whose rows the scheduler hands out, so that a step finds them by index and a
picture is encoded once. The buffer belongs to the model, whose memory the plan counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from atom.model_ops.placement import Placement
from atom.sizing.vision.facts import VisionFacts


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """An encoder to build. kept_tokens: of images whose outputs it keeps."""

    facts: VisionFacts
    kept_tokens: int


class ImageEncoder(nn.Module):
    """The base of families' encoders. Rank by rank a whole one: every rank encodes every image."""

    outputs: torch.Tensor  # [kept tokens, row size]

    def __init__(self, spec: VisionSpec) -> None:
        super().__init__()
        self.facts = spec.facts
        rows = torch.zeros(spec.kept_tokens, spec.facts.row_size)
        self.register_buffer("outputs", rows, persistent=False)

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of every parameter, which has the name that it has here."""
        for own, parameter in self.named_parameters():
            yield Placement.whole(own, parameter.data)

    def encode(self, pixels: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
        """Return the outputs [tokens, row size] of one image. pixels: in the family's layout and
        the model's type; grid: time, height and width in patches."""
        raise NotImplementedError

    def keep(
        self, rows: torch.Tensor, pixels: torch.Tensor, grid: tuple[int, int, int]
    ) -> torch.Tensor:
        """Encode an image into these rows [tokens] int64 of `outputs`. Returns whether all outputs
        are finite, a bool on the device."""
        found = self.encode(pixels.to(self.outputs.dtype), grid)
        self.outputs[rows] = found
        return torch.isfinite(found).all()
