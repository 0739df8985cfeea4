"""Vectors of a step, of requests whose prompts a pooling model has read to their end, on their way
from the runner to the front end.

One row per request; arrays, and packed arrays on the wire. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PooledRows:
    """Hold a step's vectors. request_ids [n] int64; vectors [n, size] float32: an embedding, or
    the one number of a score."""

    request_ids: NDArray[np.int64]
    vectors: NDArray[np.float32]

    def where(self, chosen: NDArray[np.bool_]) -> PooledRows | None:
        """Return the chosen rows; None if there are none."""
        if not chosen.any():
            return None
        return PooledRows(self.request_ids[chosen], self.vectors[chosen])


class PooledBody(msgspec.Struct, frozen=True):
    """PooledRows, packed. size: numbers of a vector."""

    size: int
    request_ids: bytes
    vectors: bytes

    def __post_init__(self) -> None:
        rows, rest = divmod(len(self.request_ids), 8)
        if rest or self.size < 1 or len(self.vectors) != 4 * rows * self.size:
            raise ValueError(f"{len(self.vectors)} bytes do not hold {rows} vectors")

    @staticmethod
    def packed(rows: PooledRows | None) -> PooledBody | None:
        if rows is None:
            return None
        ids, vectors = rows.request_ids.tobytes(), rows.vectors.astype("<f4").tobytes()
        return PooledBody(rows.vectors.shape[1], ids, vectors)

    def by_request(self) -> dict[int, bytes]:
        """Return each request's vector, packed float32."""
        length = 4 * self.size
        numbers = np.frombuffer(self.request_ids, dtype="<i8").tolist()
        return {
            number: self.vectors[row * length : (row + 1) * length]
            for row, number in enumerate(numbers)
        }
