"""Norms, activation, embedding and linear products equal the reference's, row by row."""

from __future__ import annotations

import pytest
import torch

from atom.model_ops.activations import Activation, ClampedSiLU, ClampedSwiGLU
from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.values import LinearWeight, NormWeight, Stream
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
    norm = NormWeight(weight, 1e-6)
    expected = reference.operations["rms_norm"](x, norm)
    assert_rows_agree(backend.operations["rms_norm"](x, norm), expected, dtype)


# The interpreter truncates to bfloat16 where GPUs round.
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=gpu)]
)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 64), (5, 96), pytest.param(300, 4096, marks=gpu)])
def test_norm_adds_exactly_what_is_pending(
    backend: Backend, reference: Backend, device: torch.device, rows: int, hidden: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    x = torch.randn(rows, hidden, device=device).to(dtype)
    residual = torch.randn(rows, hidden, device=device).to(dtype)
    weight = torch.randn(hidden, device=device).to(dtype)
    norm = NormWeight(weight, 1e-5)
    expected, settled = reference.operations["norm"](Stream(residual).plus(x), norm)
    stream = Stream(residual.clone()).plus(x.clone())
    normed, stream = backend.operations["norm"](stream, norm)
    assert stream.is_settled
    assert torch.equal(stream.residual, settled.residual)
    assert_rows_agree(normed, expected, dtype)
    again, same = backend.operations["norm"](stream, norm)
    assert torch.equal(same.residual, settled.residual), "nothing was left to add"
    assert_rows_agree(again, expected, dtype)


@pytest.mark.parametrize("dtype", [torch.float16])
def test_a_norm_weight_may_be_wider_than_the_model(
    backend: Backend, reference: Backend, device: torch.device, dtype: torch.dtype
) -> None:
    x, weight = torch.randn(3, 64, device=device).to(dtype), torch.randn(64, device=device)
    norm = NormWeight(weight, 1e-6)
    out = backend.operations["rms_norm"](x, norm)
    assert out.dtype is dtype
    assert_rows_agree(out, reference.operations["rms_norm"](x, norm), dtype)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "activation", [*Activation, ClampedSwiGLU(1.702, 1.5), ClampedSiLU(1.5)], ids=str
)
@pytest.mark.parametrize(
    ("rows", "inner"), [(1, 16), (4, 1100), pytest.param(260, 12288, marks=gpu)]
)
def test_act_and_mul(
    backend: Backend, reference: Backend, device: torch.device, rows: int, inner: int,
    activation: Activation, dtype: torch.dtype,
) -> None:  # fmt: skip
    case = OpCase(dtype=dtype, kv_dtype=dtype, activations=(activation,))
    if backend.reasons_against("act_and_mul", case):
        pytest.skip(f"{backend.name} leaves {activation.value} to another backend")
    x = (torch.randn(rows, 2 * inner, device=device) * 4).to(dtype)
    expected = reference.operations["act_and_mul"](x, activation)
    assert_rows_agree(backend.operations["act_and_mul"](x, activation), expected, dtype)


def test_embedding(backend: Backend, reference: Backend, device: torch.device) -> None:
    weight = torch.randn(50, 24, device=device)
    ids = torch.tensor([0, 49, 7, 7], device=device)
    expected = reference.operations["embedding"](ids, weight)
    assert torch.equal(backend.operations["embedding"](ids, weight), expected)


@pytest.mark.pairs
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
    expected = reference.operations["linear"](x.double(), LinearWeight(weight.double(), double))
    # Tensor cores may sum float32 products in TF32 where torch is told so; it is not here.
    prepared = backend.operations["prepare_linear"](LinearWeight(weight, offset))
    assert torch.equal(prepared.data, weight)
    assert_rows_agree(backend.operations["linear"](x, prepared), expected, dtype)
