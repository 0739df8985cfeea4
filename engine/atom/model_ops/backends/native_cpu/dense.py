"""Norms, activation and products on the CPU's kernels.

Products of more rows than `_MOST_ROWS` are torch's, whose library then is as fast (docs/results/
cpu-log.md); so are those of matrices that another backend prepared.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atom.model_ops.backends.native_cpu.library import (
    floats,
    library,
    optional_floats,
)

_MOST_ROWS = 256


def prepare_linear(weight: torch.Tensor) -> torch.Tensor:
    """Inputs outermost: what a product of few rows reads next to each other."""
    return weight.t().contiguous().t()


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if not _is_ours(x, weight):
        return F.linear(x, weight, bias)
    (rows, inputs), outputs = x.shape, weight.shape[0]
    out = torch.empty(rows, outputs)
    library().atom_linear(
        floats(x), weight.data_ptr(), _bias(bias, outputs), out.data_ptr(), rows, inputs, outputs,
        torch.get_num_threads(),
    )  # fmt: skip
    return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _normalize(None, x, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return _normalize(x, residual, weight, eps), residual


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    rows, both = x.shape
    out = torch.empty(rows, both // 2)
    library().atom_silu_and_mul(floats(x), out.data_ptr(), rows, both // 2, torch.get_num_threads())
    return out


def norm_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    addend, residual = (None, x) if residual is None else (x, residual)
    if not _is_ours(residual, weight):
        return F.linear(_normalize(addend, residual, norm_weight, eps), weight, bias), residual
    return _norm_linear(addend, residual, norm_weight, eps, weight, bias, None), residual


def norm_gated_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    addend, residual = (None, x) if residual is None else (x, residual)
    if not _is_ours(residual, weight):
        normed = _normalize(addend, residual, norm_weight, eps)
        return silu_and_mul(F.linear(normed, weight, bias)), residual
    gated = torch.empty(residual.shape[0], weight.shape[0] // 2)
    _norm_linear(addend, residual, norm_weight, eps, weight, bias, gated)
    return gated, residual


def _norm_linear(
    x: torch.Tensor | None,
    residual: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gated: torch.Tensor | None,
) -> torch.Tensor:
    """The product; with `gated` also silu(first half) · second half of it, into that tensor."""
    (rows, inputs), outputs = residual.shape, weight.shape[0]
    _check_norm(x, residual, norm_weight)
    normed, out = torch.empty(rows, inputs), torch.empty(rows, outputs)
    library().atom_norm_linear(
        optional_floats(x), floats(residual), floats(norm_weight), eps, normed.data_ptr(),
        weight.data_ptr(), _bias(bias, outputs), out.data_ptr(), optional_floats(gated), rows,
        inputs, outputs, torch.get_num_threads(),
    )  # fmt: skip
    return out


def _normalize(
    x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """residual += x, and the norm of it, over the last dimension."""
    _check_norm(x, residual, weight)
    width = residual.shape[-1]
    out = torch.empty(residual.shape)
    library().atom_add_rms_norm(
        optional_floats(x), floats(residual), floats(weight), eps, out.data_ptr(),
        residual.numel() // width, width, torch.get_num_threads(),
    )  # fmt: skip
    return out


def _check_norm(x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor) -> None:
    if weight.numel() != residual.shape[-1] or (x is not None and x.shape != residual.shape):
        raise ValueError(f"norm of {weight.numel()} over {tuple(residual.shape)}")


def _is_ours(x: torch.Tensor, weight: torch.Tensor) -> bool:
    return (
        x.dim() == 2
        and x.shape[0] <= _MOST_ROWS
        and x.shape[1] == weight.shape[1]
        and weight.stride(0) == 1
        and weight.stride(1) == weight.shape[0]
        and weight.dtype is torch.float32
    )


def _bias(bias: torch.Tensor | None, outputs: int) -> int | None:
    if bias is not None and bias.numel() != outputs:
        raise ValueError(f"bias of {bias.numel()} for {outputs} outputs")
    return optional_floats(bias)
