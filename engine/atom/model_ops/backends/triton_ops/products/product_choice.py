"""Which kernel multiplies with a matrix: what a table says, else what the rules do.

None is the library's product; of codes, which it does not multiply, a kernel for any number of
tokens (scaled_linear.py). The rules were read off cards of one vendor: elsewhere tables decide
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

from atom.model_ops.backends.triton_ops.products import product_rules
from atom.model_ops.backends.triton_ops.tuning import (
    TOKEN_BUCKETS,
    LinearConfig,
    SkinnyConfig,
    SplitConfig,
    linear_key,
    tables,
)
from atom.model_ops.values import LinearWeight, WeightFormat

# Outputs, inputs and tokens → a configuration, or None for the library's product.
Rule = Callable[[int, int, int], LinearConfig | None]


@dataclass(frozen=True, slots=True, eq=False)  # looked up by identity
class _Rules:
    """What chooses for products of a kind: the field of `Tables`, and the rule for plain matrices
    and for those of a byte an element."""

    table: Literal["linear", "addend", "gated"]
    plain: Rule
    narrow: Rule | None = None


_LINEAR = _Rules("linear", product_rules.linear_rule, product_rules.narrow_linear_rule)
_ADDEND = _Rules("addend", product_rules.addend_rule, product_rules.narrow_addend_rule)
_GATED = _Rules("gated", product_rules.gated_rule)


def linear_config(device: torch.device, w: LinearWeight, tokens: int) -> LinearConfig | None:
    """For a whole product of so many tokens."""
    found = _chosen(device, _LINEAR, w.data.dtype, (w.outputs, w.inputs), tokens)
    return found if found is None or _reads(w, found) else None


def addend_config(device: torch.device, w: LinearWeight, tokens: int) -> SplitConfig | None:
    """For one that a norm adds to the residual; None: a whole product is as good."""
    found = _chosen(device, _ADDEND, w.data.dtype, (w.outputs, w.inputs), tokens)
    return found if isinstance(found, SplitConfig) and _reads(w, found) else None


def gated_config(device: torch.device, w: LinearWeight, tokens: int) -> SplitConfig | None:
    """For plain gates and ups with their activation; None: the product, then the activation."""
    if w.format is not WeightFormat.PLAIN:
        return None
    found = _chosen(device, _GATED, w.data.dtype, (w.outputs, w.inputs), tokens)
    return found if isinstance(found, SplitConfig) else None


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
def _chosen(
    device: torch.device, rules: _Rules, dtype: torch.dtype, sizes: tuple[int, int], tokens: int
) -> LinearConfig | None:
    """sizes: outputs and inputs."""
    if not 0 < tokens <= TOKEN_BUCKETS[-1]:
        return None
    key = linear_key(dtype, *sizes, tokens)
    known: Mapping[str, LinearConfig | None] = getattr(tables(device), rules.table)
    if key in known or not _rules_hold(device):
        return known.get(key)
    rule = rules.narrow if dtype.itemsize == 1 else rules.plain
    return rule and rule(*sizes, tokens)


def _rules_hold(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is None
