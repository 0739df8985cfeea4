"""What a tensor must be: dtype, shape, order of memory, alignment."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tests.support.fake_aiter.binding import require

HALF = (torch.bfloat16, torch.float16)
_ALIGNMENT_BYTES = 16


class Checks:
    """Of one call's arguments; function: named in errors."""

    def __init__(self, function: str, architecture: str) -> None:
        self.function = function
        self.architecture = architecture
        self.fp8 = torch.float8_e4m3fnuz if architecture == "gfx942" else torch.float8_e4m3fn

    def that(self, holds: bool, message: str) -> None:
        require(holds, self.function, message)

    def tensor(
        self,
        name: str,
        tensor: torch.Tensor,
        dtypes: Sequence[torch.dtype],
        shape: Sequence[int | None] | None = None,
        *,
        strided: bool = False,
    ) -> None:
        """Of one of the dtypes, of the shape (None: any size), contiguous and aligned, or with
        strided contiguous in its last dimension."""
        self.that(isinstance(tensor, torch.Tensor), f"{name} is no tensor")
        self.that(tensor.dtype in dtypes, f"{name} is {tensor.dtype}, not one of {list(dtypes)}")
        if shape is not None:
            same = len(shape) == tensor.dim() and all(
                want is None or want == have for want, have in zip(shape, tensor.shape, strict=True)
            )
            self.that(same, f"{name} is {list(tensor.shape)}, and {list(shape)} is wanted")
        ordered = tensor.numel() <= 1 or tensor.stride(-1) == 1
        self.that(ordered if strided else tensor.is_contiguous(), f"{name} has strides")
        aligned = strided or not tensor.numel() or tensor.data_ptr() % _ALIGNMENT_BYTES == 0
        self.that(aligned or tensor.numel() * tensor.element_size() < 16, f"{name} is unaligned")

    def on(self, *architectures: str) -> None:
        known = ", ".join(architectures)
        self.that(
            self.architecture in architectures, f"has kernels for {known}, not {self.architecture}"
        )
