"""Select the kernel of a product: the one of its family, as far as a card was measured.

None means the library's product; for codes, which the library does not multiply, a kernel for any
number of tokens (w8a8_gemm.py). A measured card stands in for other cards of its vendor; otherwise
the library multiplies until `tune` has measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import torch

from atom.model_ops.backends.triton_ops.compile.tuning import (
    TOKEN_BUCKETS,
    LinearConfig,
    SkinnyConfig,
    SplitKConfig,
    Tables,
    read_tables,
    tables,
    token_bucket,
)
from atom.model_ops.backends.triton_ops.gemm import fp8_tile_rules
from atom.model_ops.backends.triton_ops.gemm.cost_model import Card, Product
from atom.model_ops.backends.triton_ops.gemm.tile_families import (
    Point,
    family_config,
    measured_points,
)
from atom.model_ops.backends.triton_ops.launch import compute_units, shared_bytes
from atom.model_ops.values import LinearWeight, WeightFormat

# Outputs, inputs and tokens → a configuration, or None for the library's product.
Rule = Callable[[int, int, int], LinearConfig | None]
Table = Literal["linear", "addend", "gated"]  # a field of `Tables`
# The card whose measurements replace missing ones of its vendor's cards.
_STAND_IN = "NVIDIA H200"


@dataclass(frozen=True, slots=True, eq=False)  # looked up by identity
class _Kind:
    """A kind of product: the field of `Tables` with its points, and the rule for matrices with
    elements of one byte."""

    table: Table
    narrow: Rule | None = None


_LINEAR = _Kind("linear", fp8_tile_rules.linear_rule)
_ADDEND = _Kind("addend")
_GATED = _Kind("gated")


def linear_config(device: torch.device, w: LinearWeight, tokens: int) -> LinearConfig | None:
    """Choose the configuration of a whole product of so many tokens."""
    found = _chosen(device, _LINEAR, w.data.dtype, (w.outputs, w.inputs), tokens)
    return found if found is None or _reads(w, found) else None


def addend_config(device: torch.device, w: LinearWeight, tokens: int) -> SplitKConfig | None:
    """Choose the configuration of a plain product that a norm adds to the residual; None if a whole
    product is as good."""
    if w.format is not WeightFormat.PLAIN:
        return None
    found = _chosen(device, _ADDEND, w.data.dtype, (w.outputs, w.inputs), tokens)
    return found if isinstance(found, SplitKConfig) else None


def gated_config(device: torch.device, w: LinearWeight, tokens: int) -> SplitKConfig | None:
    """Choose the configuration of a plain w13 with its activation; None for the product, then the
    activation."""
    if w.format is not WeightFormat.PLAIN:
        return None
    found = _chosen(device, _GATED, w.data.dtype, (w.outputs, w.inputs), tokens)
    return found if isinstance(found, SplitKConfig) else None


def _reads(w: LinearWeight, config: LinearConfig) -> bool:
    """Return whether the inputs and outputs that a kernel multiplies at once share a scale, if
    scales are of blocks."""
    if w.format is not WeightFormat.FP8_BLOCKS:
        return w.format in (WeightFormat.PLAIN, WeightFormat.FP8)
    assert w.scales is not None
    tall, wide = w.scales.block
    if tall % config.block_n:
        return False
    by_input = isinstance(config, SkinnyConfig) and config.kernel == "gemv"
    return by_input or wide % config.block_k == 0


def predicted_config(device: torch.device, table: Table, product: Product) -> LinearConfig | None:
    """Return the configuration that a plain product would get if its own shape had not been
    measured."""
    points = [
        point
        for point in _points(device, table, token_bucket(product.tokens))
        if (point.outputs, point.inner) != (product.outputs, product.inner)
    ]
    return family_config(points, product, _card(device))


@cache
def _chosen(
    device: torch.device, kind: _Kind, dtype: torch.dtype, sizes: tuple[int, int], tokens: int
) -> LinearConfig | None:
    """Choose the configuration of a kind of product. sizes: outputs and inputs."""
    if not 0 < tokens <= TOKEN_BUCKETS[-1] or device.type != "cuda":
        return None
    if dtype.itemsize == 1:
        return kind.narrow and kind.narrow(*sizes, tokens) if _stands_in(device) else None
    bucket = token_bucket(tokens)
    product = Product(*sizes, bucket, dtype.itemsize, gated=kind.table == "gated")
    return family_config(_points(device, kind.table, bucket), product, _card(device))


@cache
def _card(device: torch.device) -> Card:
    rates = _known(device).rates
    assert rates is not None, "those of the card that stands in are shipped"
    return Card(compute_units(device), shared_bytes(device), rates)


@cache
def _points(device: torch.device, table: Table, bucket: int) -> tuple[Point, ...]:
    return measured_points(getattr(_known(device), table), bucket)


@cache
def _known(device: torch.device) -> Tables:
    """Return the measurements of the device, or of the card that stands in for it."""
    own, other = tables(device), read_tables(_STAND_IN)
    if own.linear or not _stands_in(device):
        return replace(own, rates=own.rates or other.rates)
    return other


def _stands_in(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is None
