"""Norms, activation and products on the CPU's kernels.

torch multiplies more rows than `_MOST_ROWS`, for which its library is as fast
(docs/results/cpu-log.md), and matrices that another backend prepared.
"""

from __future__ import annotations

import torch

from atom.model_ops.activations import Activation, Gating
from atom.model_ops.backends.native_cpu.library import (
    floats,
    library,
    optional_floats,
)
from atom.model_ops.quantised.dequantise import multiply
from atom.model_ops.values import LinearWeight, NormWeight, Pending, Stream

_MOST_ROWS = 256


def linear(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    return product(x, w) if _is_ours(x, w) else multiply(x, w)


def product(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    """Multiply any number of rows x [T, in] with the kernel, each summed front to back
    independently of the others; w float32, inputs outermost."""
    if x.shape[1] != w.inputs or not w.data.mT.is_contiguous() or w.data.dtype is not x.dtype:
        raise ValueError(f"rows {tuple(x.shape)} times {tuple(w.data.shape)} {w.data.dtype}")
    out = torch.empty(x.shape[0], w.outputs)
    library().atom_linear(
        floats(x), w.data.data_ptr(), _bias(w), out.data_ptr(), x.shape[0], w.inputs, w.outputs,
        torch.get_num_threads(),
    )  # fmt: skip
    return out


def rms_norm(x: torch.Tensor, norm: NormWeight) -> torch.Tensor:
    return _normalize(Stream(x), norm)


def norm(stream: Stream, norm: NormWeight) -> tuple[torch.Tensor, Stream]:
    return _normalize(stream, norm), Stream(stream.residual)


def act_and_mul(x: torch.Tensor, activation: Gating) -> torch.Tensor:
    assert activation is Activation.SILU, "another backend is chosen for other activations"
    rows, both = x.shape
    out = torch.empty(rows, both // 2)
    library().atom_silu_and_mul(floats(x), out.data_ptr(), rows, both // 2, torch.get_num_threads())
    return out


def norm_linear(stream: Stream, norm: NormWeight, w: LinearWeight) -> tuple[torch.Tensor, Stream]:
    settled = Stream(stream.residual)
    if not _is_ours(stream.residual, w):
        return multiply(_normalize(stream, norm), w), settled
    return _norm_linear(stream, norm, w, None), settled


def norm_gated_linear(
    stream: Stream, norm: NormWeight, w: LinearWeight, activation: Gating
) -> tuple[torch.Tensor, Stream]:
    settled = Stream(stream.residual)
    if not _is_ours(stream.residual, w):
        gate_up = multiply(_normalize(stream, norm), w)
        return act_and_mul(gate_up, activation), settled
    gated = torch.empty(stream.residual.shape[0], w.outputs // 2)
    _norm_linear(stream, norm, w, gated)
    return gated, settled


def _norm_linear(
    stream: Stream, norm: NormWeight, w: LinearWeight, gated: torch.Tensor | None
) -> torch.Tensor:
    """Norm and multiply, adding the pending addend to the residual. With `gated`, also compute
    silu(first half) · second half of the product, into that tensor."""
    _check_norm(stream, norm)
    rows, inputs = stream.residual.shape
    normed, out = torch.empty(rows, inputs), torch.empty(rows, w.outputs)
    library().atom_norm_linear(
        optional_floats(stream.pending), floats(stream.residual), floats(norm.weight), norm.eps,
        normed.data_ptr(), w.data.data_ptr(), _bias(w), out.data_ptr(), optional_floats(gated),
        rows, inputs, w.outputs, torch.get_num_threads(),
    )  # fmt: skip
    return out


def _normalize(stream: Stream, norm: NormWeight) -> torch.Tensor:
    """Add the pending addend to the residual, and norm it over the last dimension."""
    _check_norm(stream, norm)
    residual = stream.residual
    width = residual.shape[-1]
    out = torch.empty(residual.shape)
    library().atom_add_rms_norm(
        optional_floats(stream.pending), floats(residual), floats(norm.weight), norm.eps,
        out.data_ptr(), residual.numel() // width, width, torch.get_num_threads(),
    )  # fmt: skip
    return out


def _check_norm(stream: Stream, norm: NormWeight) -> None:
    assert stream.pending_is is not Pending.PARTS, "this backend's products come whole"
    x, residual = stream.pending, stream.residual
    if norm.weight.numel() != residual.shape[-1] or (x is not None and x.shape != residual.shape):
        raise ValueError(f"norm of {norm.weight.numel()} over {tuple(residual.shape)}")


def _is_ours(x: torch.Tensor, w: LinearWeight) -> bool:
    return (
        x.dim() == 2
        and x.shape[0] <= _MOST_ROWS
        and x.shape[1] == w.inputs
        and w.data.stride() == (1, w.outputs)
        and w.data.dtype is torch.float32
    )


def _bias(w: LinearWeight) -> int | None:
    if w.bias is not None and w.bias.numel() != w.outputs:
        raise ValueError(f"bias of {w.bias.numel()} for {w.outputs} outputs")
    return optional_floats(w.bias)
