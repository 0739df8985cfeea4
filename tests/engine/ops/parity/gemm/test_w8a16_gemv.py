"""Few tokens with matrices of fp8, in the kernels that plain matrices have: the codes' product."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F

from tests.engine.ops.inputs import assert_rows_agree

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from atom.model_ops.backends.torch_ref.dense import norm as reference_norm
from atom.model_ops.backends.triton_ops.compile.tuning import SkinnyConfig
from atom.model_ops.backends.triton_ops.gemm import w8a16_gemv as codes
from atom.model_ops.backends.triton_ops.gemm.linear import prepare_linear
from atom.model_ops.backends.triton_ops.gemm.norm_linear import can_fuse, norm_linear
from atom.model_ops.backends.triton_ops.gemm.skinny_linear import skinny_linear
from atom.model_ops.backends.triton_ops.nvidia import scaled_mm
from atom.model_ops.quantised.dequantise import dequantise
from atom.model_ops.quantised.quantise import quantise
from atom.model_ops.values import LinearWeight, NormWeight, Pending, Scales, Stream, WeightFormat

DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
FORMATS = [WeightFormat.FP8, WeightFormat.FP8_BLOCKS]


def matrix(
    kind: WeightFormat, outputs: int, inner: int, device: torch.device, dtype: torch.dtype
) -> LinearWeight:
    """Codes with a bias; blocks of 64 outputs and 128 inputs, whose magnitudes differ."""
    block = (64, 128) if kind is WeightFormat.FP8_BLOCKS else (1, inner)
    sizes = torch.rand(outputs // 32, inner // 64, device=device) + 0.1
    plain = torch.randn(outputs, inner, device=device) / inner**0.5
    plain *= sizes.repeat_interleave(32, 0).repeat_interleave(64, 1)
    data, scale = quantise(plain, kind, block)
    bias = torch.randn(outputs, device=device).to(dtype)
    return prepare_linear(LinearWeight(data, bias, Scales(kind, scale, block, dtype)))


def product(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    assert w.scales is not None
    assert w.bias is not None
    return F.linear(x.double(), dequantise(w.data, w.scales).double(), w.bias.double())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        (SkinnyConfig("gemv", 4, 128, 1, 4, 1), 1),
        (SkinnyConfig("gemv", 2, 256, 1, 4, 1), 3),
        (SkinnyConfig("dot", 16, 64, 2, 4, 2), 1),
        (SkinnyConfig("dot", 32, 128, 4, 4, 2), 11),
    ],
)
def test_skinny_products(
    device: torch.device, config: SkinnyConfig, tokens: int, kind: WeightFormat, dtype: torch.dtype
) -> None:
    x = torch.randn(tokens, 384, device=device).to(dtype)
    w = matrix(kind, 128, 384, device, dtype)
    assert_rows_agree(skinny_linear(x, w, config), product(x, w), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("gated", [False, True])
def test_one_tokens_norm_and_product(
    device: torch.device, gated: bool, kind: WeightFormat, dtype: torch.dtype
) -> None:
    residual, added = (torch.randn(1, 256, device=device).to(dtype) for _ in range(2))
    norm = NormWeight(torch.rand(256, device=device).to(dtype), 1e-6)
    w = matrix(kind, 128, 256, device, dtype)
    stream = Stream(residual, added, Pending.WHOLE)
    assert can_fuse(stream, w)
    normed, settled = reference_norm(Stream(residual.clone(), added, Pending.WHOLE), norm)
    expected = product(normed, w)
    if gated:
        gate, up = expected.chunk(2, dim=1)
        expected = F.silu(gate) * up
    out, own = norm_linear(stream, norm, w, gated=gated)
    assert_rows_agree(out, expected, dtype, slack=2.0)
    assert torch.equal(own.residual, settled.residual)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("inner", [64, 2368])
def test_one_token_by_its_codes(
    device: torch.device, inner: int, kind: WeightFormat, dtype: torch.dtype
) -> None:
    """Of an inner dimension that is less than a turn of a warp, and of more than one of all."""
    x = torch.randn(1, inner, device=device).to(dtype)
    w = matrix(kind, 64, inner, device, dtype)
    assert codes.takes(w, gated=False)
    assert_rows_agree(codes.w8a16_linear(x, w), product(x, w), dtype)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("normed", ["before", "here", "with a residual"])
def test_one_tokens_norm_and_product_by_codes(
    device: torch.device, normed: str, gated: bool, kind: WeightFormat, dtype: torch.dtype
) -> None:
    residual, added = (torch.randn(1, 2112, device=device).to(dtype) for _ in range(2))
    norm = NormWeight(torch.rand(2112, device=device).to(dtype), 1e-6)
    w = matrix(kind, 64, 2112, device, dtype)
    stream = Stream(residual, *((added, Pending.WHOLE) if "residual" in normed else ()))
    wanted = Stream(residual.clone(), *((added, Pending.WHOLE) if "residual" in normed else ()))
    x, settled = reference_norm(wanted, norm) if normed != "before" else (residual, wanted)
    expected = product(x, w)
    if gated:
        gate, up = expected.chunk(2, dim=1)
        expected = F.silu(gate) * up
    out, own = codes.norm_w8a16_linear(stream, None if normed == "before" else norm, w, gated=gated)
    assert_rows_agree(out, expected, dtype, slack=2.0)
    assert torch.equal(own.residual, settled.residual)


def test_blocks_that_end_within_a_programs_rows_are_left_to_others(device: torch.device) -> None:
    data = torch.zeros(96, 128, device=device).to(torch.float8_e4m3fn)
    for block, whole, gated in (((64, 64), True, True), ((36, 64), False, False)):
        scale = torch.ones(-(-96 // block[0]), 2, device=device)
        kind = WeightFormat.FP8_BLOCKS
        w = LinearWeight(data, None, Scales(kind, scale, block, torch.float32))
        assert codes.takes(w, gated=False) is whole
        assert codes.takes(w, gated=True) is gated


@pytest.mark.gpu
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_the_librarys_product(device: torch.device, tokens: int, kind: WeightFormat) -> None:
    """With activations in eight bits."""
    x = torch.randn(tokens, 512, device=device).bfloat16()
    block = (128, 128) if kind is WeightFormat.FP8_BLOCKS else (1, 512)
    data, scale = quantise(torch.randn(256, 512, device=device) / 16, kind, block)
    bias = torch.randn(256, device=device).bfloat16()
    w = LinearWeight(data, bias, Scales(kind, scale, block, torch.bfloat16))
    if not scaled_mm.takes(x, w):
        pytest.skip("this card's library has no products of these formats")
    assert_rows_agree(scaled_mm.multiply(x, w), product(x, w), torch.bfloat16, slack=4.0)
