"""Packing: the places of several arrays in one allocation, so that one copy takes them to a device.

A copy costs the host about 40 µs, whatever its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

# Of a tensor in an allocation that it shares: as wide as the widest load of a kernel.
_ALIGNMENT = 16
_TORCH_DTYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}


@dataclass(frozen=True, slots=True)
class _Place:
    start: int
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    size: int

    @property
    def bytes(self) -> slice:
        return slice(self.start, self.start + self.size)


class Packing:
    """Lays out arrays like these in one allocation. size: of the allocation in bytes."""

    def __init__(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        self._places: dict[str, _Place] = {}
        self.size = 0
        for name, array in arrays.items():
            self._places[name] = _Place(self.size, array.dtype, array.shape, array.nbytes)
            self.size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT

    def arrays(self, packed: NDArray[np.uint8]) -> dict[str, NDArray[np.generic]]:
        """Return the arrays in an allocation on the host."""
        return {
            name: packed[place.bytes].view(place.dtype).reshape(place.shape)
            for name, place in self._places.items()
        }

    def tensors(self, packed: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the arrays in an allocation on a device, [size] uint8."""
        return {
            name: packed[place.bytes].view(_TORCH_DTYPES[place.dtype]).view(place.shape)
            for name, place in self._places.items()
        }
