"""Bounds of an operation's results: how far a kernel may be from the reference.

Declared once, for the parity tests and for the self-check of a start. An error is that of a row's
result, ‖out - expected‖ / ‖expected‖, so that one wrong row is not diluted by many right ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from atom.model_ops.values import WeightFormat

# Of a row's result against a reference in wider numbers: a few roundings of the dtype. float32 sums
# of thousands of terms stay below 1e-5; half precision rounds probabilities once and results once.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}

# What the inputs of a product lose if they are rounded to the matrix' element. Triton's interpreter
# loses the carry of a mantissa that is rounded up.
_FP8_INPUT = 0.04 if torch.cuda.is_available() else 0.07
INPUT_ERROR = {
    WeightFormat.FP8: _FP8_INPUT,
    WeightFormat.FP8_BLOCKS: _FP8_INPUT,
    WeightFormat.INT8: 0.02,
}
# The same of products with fp4_inputs, whose inputs have two bits of mantissa.
FP4_INPUT_ERROR = 0.15
# Of keys and values that are stored in fp8: a few elements round to the other neighbour.
FP8_CACHE_ERROR = 0.04

# Tolerances that an operation's rounding takes, if more than one. Fused operations round between
# their parts where the reference does not; experts round their inner activations as well.
SLACK: dict[str, float] = {
    "linear_parts": 2.0,
    "gated_linear": 2.0,
    "add": 2.0,
    "norm_linear": 2.0,
    "norm_gated_linear": 2.0,
    "linear_lora": 2.0,
    "norm_linear_lora": 2.0,
    "add_lora": 2.0,
    "experts": 2.0,
    "add_experts": 2.0,
    "norm_experts": 3.0,
    "expert_products": 2.0,
    "qk_norm_rope_store": 1.5,
    "mla_rope_store": 1.5,
    "attention": 4.0,
    "mla_attention": 2.0,
    "sparse_mla_attention": 2.0,
    "gated_delta_rule": 3.0,
    "gated_delta_net": 3.0,
    "state_space_dual": 3.0,
}
# Of the states in float32, which sum up every token of a row.
STATES_SLACK = 10.0
# The operations that round the inputs of two products, one after the other.
_TWICE = ("experts", "add_experts", "norm_experts")


def slack_of(op: str) -> float:
    """Return how many tolerances of its dtype an operation's result may be off."""
    return SLACK.get(op, 1.0)


def bound_of(op: str, dtype: torch.dtype, losses: Iterable[float] = ()) -> float:
    """Return the bound of a row's error. losses: what other roundings add, such as `INPUT_ERROR`
    of each format that the operation's matrices have."""
    times = 2.0 if op in _TWICE else 1.0
    return math.hypot(TOLERANCE[dtype] * slack_of(op), times * max(losses, default=0.0))


def row_errors(out: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Compute ‖out - expected‖ / ‖expected‖ of every row (the first dimension)."""
    out, expected = out.double().flatten(1), expected.double().flatten(1)
    return (out - expected).norm(dim=1) / expected.norm(dim=1).clamp_min(1e-30)
