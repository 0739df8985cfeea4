"""Inputs of exercises, the reference, and how close a result must be to the reference's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom.model_ops.backends import load_backend
from atom.model_ops.self_check.agreement import TOLERANCE, row_errors

Ops = dict[str, Callable[..., Any]]
HALF = torch.float16
ROUNDING = TOLERANCE[HALF]  # of a row
EPSILON = 0.5  # so large that forgetting it shows
BFLOAT16 = 16.0  # slack of two of its roundings
# Roundings of activations to 8 bits, which the reference does not do.
EIGHT_BITS = 25.0
# And to four.
FOUR_BITS = 75.0


def reference() -> Ops:
    return load_backend("torch_ref").operations


def draw(*size: int, dtype: torch.dtype = HALF, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(size) * scale).to(dtype)


def agree(
    out: torch.Tensor, expected: torch.Tensor, slack: float = 2.0, dtype: torch.dtype = HALF
) -> None:
    """Assert that ‖out - expected‖ / ‖expected‖ of every row (the first dimension) is within the
    limit."""
    assert out.dtype is dtype, f"result in {out.dtype}"
    assert out.shape == expected.shape, f"result {list(out.shape)}, not {list(expected.shape)}"
    assert out.isfinite().all(), "result has NaN or infinity"
    error = row_errors(out, expected)
    worst, limit = float(error.max()), ROUNDING * slack
    assert worst <= limit, f"row {int(error.argmax())} is off by {worst:.1e}, limit {limit:.1e}"
