"""The parts of a split product add up to it, whichever side of the tile the weights are on."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from tests.engine.ops.inputs import assert_rows_agree

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from atom.model_ops.activations import Activation
from atom.model_ops.backends.triton_ops.compile.tuning import SplitKConfig
from atom.model_ops.backends.triton_ops.gemm.split_k_linear import gated_linear, split_k_linear
from atom.model_ops.backends.triton_ops.norms import norm as settle_and_norm
from atom.model_ops.values import LinearWeight, NormWeight, Pending, Stream

DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("weights_first", [False, True])
@pytest.mark.parametrize("split_k", [1, 2, 4])
@pytest.mark.parametrize("tokens", [2, 16, 45])
def test_parts_add_up(
    device: torch.device, tokens: int, split_k: int, weights_first: bool, bias: bool,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    x = torch.randn(tokens, 256, device=device).to(dtype)
    weight = (torch.randn(128, 256, device=device) / 16).to(dtype)
    offset = torch.randn(128, device=device).to(dtype) if bias else None
    expected = torch.nn.functional.linear(
        x.double(), weight.double(), None if offset is None else offset.double()
    )
    config = SplitKConfig(64, 64, split_k, weights_first, 4, 3)
    parts = split_k_linear(x, LinearWeight(weight, offset), config)
    if split_k == 1:
        assert_rows_agree(parts, expected, dtype)
        return
    assert parts.shape == (split_k, tokens, 128)
    # The sum is float32; half precision rounded only what went in.
    assert_rows_agree(parts.sum(0), expected, dtype)
    residual = torch.randn(tokens, 128, device=device).to(dtype)
    norm = NormWeight(torch.ones(128, device=device, dtype=dtype), 1e-6)
    _, settled = settle_and_norm(Stream(residual.clone(), parts, Pending.PARTS), norm)
    assert_rows_agree(settled.residual, expected + residual.double(), dtype)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("weights_first", [False, True])
@pytest.mark.parametrize("tokens", [3, 45])
def test_a_gated_product_ends_in_its_activation(
    reference: Backend, device: torch.device, tokens: int, weights_first: bool, bias: bool,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    x = torch.randn(tokens, 128, device=device).to(dtype)
    weight = (torch.randn(256, 128, device=device) / 8).to(dtype)
    offset = torch.randn(256, device=device).to(dtype) if bias else None
    expected = reference.operations["act_and_mul"](
        torch.nn.functional.linear(
            x.double(), weight.double(), None if offset is None else offset.double()
        ),
        Activation.SILU,
    )
    config = SplitKConfig(64, 64, 1, weights_first, 4, 3, block_t=32)
    assert_rows_agree(gated_linear(x, LinearWeight(weight, offset), config), expected, dtype)
