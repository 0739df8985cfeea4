"""Which kernel multiplies with a matrix: what a table says, else what the rules do.

None is the library's product; of codes, which it does not multiply, a kernel for any number of
tokens (scaled_linear.py). The rules were read off cards of one vendor: elsewhere tables decide
alone.
"""

from __future__ import annotations

from functools import cache

import torch

from atom.model_ops.backends.triton_ops import product_rules
from atom.model_ops.backends.triton_ops.tuning import (
    TOKEN_BUCKETS,
    LinearConfig,
    SkinnyConfig,
    SplitConfig,
    linear_key,
    tables,
)
from atom.model_ops.values import LinearWeight, WeightFormat


def linear_config(device: torch.device, w: LinearWeight, tokens: int) -> LinearConfig | None:
    """For a whole product of so many tokens."""
    found = _linear(device, w.data.dtype, w.outputs, w.inputs, tokens) if tokens else None
    return found if found is None or _reads(w, found) else None


def addend_config(device: torch.device, w: LinearWeight, tokens: int) -> SplitConfig | None:
    """For one that a norm adds to the residual; None: a whole product is as good."""
    found = _addend(device, w.data.dtype, w.outputs, w.inputs, tokens) if tokens else None
    return found if found is None or _reads(w, found) else None


def gated_config(device: torch.device, w: LinearWeight, tokens: int) -> SplitConfig | None:
    """For plain gates and ups with their activation; None: the product, then the activation."""
    if tokens == 0 or w.format is not WeightFormat.PLAIN:
        return None
    return _gated(device, w.data.dtype, w.outputs, w.inputs, tokens)


def _reads(w: LinearWeight, config: LinearConfig) -> bool:
    """Whether what a kernel multiplies at once shares a scale, where scales are of blocks."""
    if w.format is not WeightFormat.FP8_BLOCKS:
        return w.format in (WeightFormat.PLAIN, WeightFormat.FP8)
    assert w.scales is not None
    tall, wide = w.scales.block
    if tall % config.block_n:
        return False
    by_input = isinstance(config, SkinnyConfig) and config.kernel == "gemv"
    return by_input or wide % config.block_k == 0


@cache
def _linear(
    device: torch.device, dtype: torch.dtype, outputs: int, inner: int, tokens: int
) -> LinearConfig | None:
    if tokens > TOKEN_BUCKETS[-1]:
        return None
    key, known = linear_key(dtype, outputs, inner, tokens), tables(device).linear
    if key in known or not _rules_hold(device):
        return known.get(key)
    if dtype.itemsize == 1:
        return product_rules.narrow_linear_rule(outputs, inner, tokens)
    return product_rules.linear_rule(outputs, inner, tokens)


@cache
def _addend(
    device: torch.device, dtype: torch.dtype, outputs: int, inner: int, tokens: int
) -> SplitConfig | None:
    if tokens > TOKEN_BUCKETS[-1]:
        return None
    key, known = linear_key(dtype, outputs, inner, tokens), tables(device).addend
    if key in known or not _rules_hold(device):
        return known.get(key)
    if dtype.itemsize == 1:
        return product_rules.narrow_addend_rule(outputs, inner, tokens)
    return product_rules.addend_rule(outputs, inner, tokens)


@cache
def _gated(
    device: torch.device, dtype: torch.dtype, outputs: int, inner: int, tokens: int
) -> SplitConfig | None:
    if tokens > TOKEN_BUCKETS[-1]:
        return None
    key, known = linear_key(dtype, outputs, inner, tokens), tables(device).gated
    if key in known or not _rules_hold(device):
        return known.get(key)
    return product_rules.gated_rule(outputs, inner, tokens)


def _rules_hold(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is None
