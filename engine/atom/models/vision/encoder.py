"""ImageEncoder: what every image encoder is to the decoder, and the outputs that it keeps.

A family's encoder turns the pixels of some images into an output per token (`encode`): one matrix
product of a layer has the patches of all of them, since those of a small picture alone leave a
device idle. The outputs lie in one buffer whose rows the scheduler hands out, so that a step finds
them by index and a picture is encoded once. The buffer belongs to the model, whose memory the plan
counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from atom.model_ops.backends.interface import Ops
from atom.model_ops.placement import Placement
from atom.models.vision.parts import Dense, JoinedDense, RootNorm
from atom.sizing.vision.facts import Grid, VisionFacts


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """An encoder to build. kept_tokens: of images whose outputs it keeps."""

    facts: VisionFacts
    kept_tokens: int


class ImageEncoder(nn.Module):
    """The base of families' encoders. Rank by rank a whole one: every rank encodes every image."""

    outputs: torch.Tensor  # [kept tokens, row size]
    # Prefixes of names of the checkpoint's tensors that the encoder does not compute.
    unused: tuple[str, ...] = ()

    def __init__(self, spec: VisionSpec, ops: Ops) -> None:
        super().__init__()
        self.facts, self._ops = spec.facts, ops
        rows = torch.zeros(spec.kept_tokens, spec.facts.row_size)
        self.register_buffer("outputs", rows, persistent=False)

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of every parameter, which has the name that it has here."""
        for own, module in self.named_modules():
            if isinstance(module, JoinedDense):
                yield from module.sources(own)
                continue
            for kind, parameter in module.named_parameters(recurse=False):
                source = Placement.whole(f"{own}.{kind}".removeprefix("."), parameter.data)
                order = module.order if isinstance(module, Dense | RootNorm) else None
                yield replace(source, order=order)

    @property
    def pixel_type(self) -> torch.dtype:
        """Return the type in which pixels are read: the model's, unless the encoder computes with
        them before its first matrix."""
        return self.outputs.dtype

    def encode(self, pixels: Sequence[torch.Tensor], grids: Sequence[Grid]) -> torch.Tensor:
        """Return the outputs [tokens, row size] of images, one after the other. pixels: of each
        image, in the family's layout, float32 or of `pixel_type`; grids: time, height and width in
        patches. Images of equal grids are best neighbours."""
        raise NotImplementedError

    def keep(
        self, rows: torch.Tensor, pixels: Sequence[torch.Tensor], grids: Sequence[Grid]
    ) -> torch.Tensor:
        """Encode images into these rows [tokens] int64 of `outputs`. Returns of each image whether
        all of its outputs are finite, bools [images] on the device."""
        found = self.encode(pixels, grids)
        self.outputs[rows] = found
        finite = torch.isfinite(found).all(dim=1)
        counts = [self.facts.image_tokens(grid) for grid in grids]
        return torch.stack([each.all() for each in finite.split(counts)])
