"""Tiles of a product by its family: the measurements of similar shapes, as far as they fit.

Measured points lie in a plane of outputs and inputs, on logarithmic scales, one plane for every
kind of product and number of tokens. A point states the fastest tile there, or that the library was
faster. For a shape between them the nearest point decides whether the library wins; if not, the
tiles of all points compete in the cost model (cost_model.py). A tile pays a penalty for its
distance from the point where it was measured, since the measurement includes effects that the model
lacks. A tile that the model rates slower than the library is never used. So a point keeps its own
tile, and no shape needs its own measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atom.model_ops.backends.triton_ops.compile.tuning import LinearConfig, read_linear_key
from atom.model_ops.backends.triton_ops.gemm.cost_model import (
    Card,
    Product,
    fits,
    library_seconds,
    seconds,
)

# A tile's penalty for an octave between a shape and its measured point.
_DOUBT = 0.04


@dataclass(frozen=True, slots=True)
class Point:
    """config: the fastest tile measured for a matrix [outputs, inner]; None: the library was."""

    outputs: int
    inner: int
    config: LinearConfig | None

    def octaves(self, product: Product) -> float:
        """Return the distance of a product's matrix from the point."""
        tall = math.log2(product.outputs / self.outputs)
        return abs(tall) + abs(math.log2(product.inner / self.inner))


def measured_points(table: Mapping[str, LinearConfig | None], bucket: int) -> tuple[Point, ...]:
    """Return the points of a table (`linear_key` → configuration) that belong to a bucket of
    tokens."""
    keys = ((key, read_linear_key(key)) for key in table)
    return tuple(
        Point(outputs, inner, table[key])
        for key, (outputs, inner, tokens) in keys
        if tokens == bucket
    )


def family_config(points: Sequence[Point], product: Product, card: Card) -> LinearConfig | None:
    """Return the tile for a product; None for the library."""
    if not points:
        return None
    nearest = min(points, key=lambda point: point.octaves(product))
    if nearest.config is None or nearest.octaves(product) == 0:
        return nearest.config
    possible = [config for config in _proven(points) if fits(config, product, card)]
    if not possible:
        return None
    best = min(possible, key=lambda config: _cost(config, points, product, card))
    return best if seconds(best, product, card) < library_seconds(product, card) else None


def _cost(config: LinearConfig, points: Iterable[Point], product: Product, card: Card) -> float:
    far = min(point.octaves(product) for point in points if point.config == config)
    return seconds(config, product, card) * (1.0 + _DOUBT * far)


def _proven(points: Iterable[Point]) -> list[Any]:
    """Return the tiles of the points, each once."""
    return list(dict.fromkeys(point.config for point in points if point.config is not None))
