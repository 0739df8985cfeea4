"""Norms, activation, embedding and linear products equal the reference's, row by row."""

from __future__ import annotations

import pytest
import torch

from atom.model_ops.backends.interface import Backend
from tests.engine.ops.inputs import assert_rows_agree

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
gpu = pytest.mark.gpu


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "hidden"),
    [
        (1, 64),
        (5, 96),
        (3, 1024),
        pytest.param(300, 4096, marks=gpu),
        pytest.param(65, 5120, marks=gpu),
    ],
)
def test_rms_norm(
    backend: Backend, reference: Backend, device: torch.device, rows: int, hidden: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    x = torch.randn(rows, hidden, device=device).to(dtype) * 3
    weight = torch.randn(hidden, device=device).to(dtype)
    expected = reference.operations["rms_norm"](x, weight, 1e-6)
    assert_rows_agree(backend.operations["rms_norm"](x, weight, 1e-6), expected, dtype)


# The interpreter truncates to bfloat16 where GPUs round.
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=gpu)]
)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 64), (5, 96), pytest.param(300, 4096, marks=gpu)])
def test_add_rms_norm_adds_exactly_and_norms(
    backend: Backend, reference: Backend, device: torch.device, rows: int, hidden: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    x = torch.randn(rows, hidden, device=device).to(dtype)
    residual = torch.randn(rows, hidden, device=device).to(dtype)
    weight = torch.randn(hidden, device=device).to(dtype)
    expected, expected_residual = reference.operations["add_rms_norm"](x, residual, weight, 1e-5)
    normed, summed = backend.operations["add_rms_norm"](x.clone(), residual.clone(), weight, 1e-5)
    assert torch.equal(summed, expected_residual)
    assert_rows_agree(normed, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "inner"), [(1, 16), (4, 1100), pytest.param(260, 12288, marks=gpu)]
)
def test_silu_and_mul(
    backend: Backend, reference: Backend, device: torch.device, rows: int, inner: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    x = (torch.randn(rows, 2 * inner, device=device) * 4).to(dtype)
    expected = reference.operations["silu_and_mul"](x)
    assert_rows_agree(backend.operations["silu_and_mul"](x), expected, dtype)


def test_embedding(backend: Backend, reference: Backend, device: torch.device) -> None:
    weight = torch.randn(50, 24, device=device)
    ids = torch.tensor([0, 49, 7, 7], device=device)
    expected = reference.operations["embedding"](ids, weight)
    assert torch.equal(backend.operations["embedding"](ids, weight), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tokens", [1, 3, 8, 16, 40])
def test_linear(
    backend: Backend, reference: Backend, device: torch.device, tokens: int, bias: bool,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    x = torch.randn(tokens, 96, device=device).to(dtype)
    weight = torch.randn(64, 96, device=device).to(dtype)
    offset = torch.randn(64, device=device).to(dtype) if bias else None
    double = None if offset is None else offset.double()
    expected = reference.operations["linear"](x.double(), weight.double(), double)
    # Tensor cores may sum float32 products in TF32 where torch is told so; it is not here.
    prepared = backend.operations["prepare_linear"](weight)
    assert torch.equal(prepared, weight)
    assert_rows_agree(backend.operations["linear"](x, prepared, offset), expected, dtype)
