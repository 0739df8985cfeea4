"""8-bit products are those of the codes that activations are rounded to, few tokens or many."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from tests.engine.ops.inputs import assert_rows_agree

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from atom.model_ops.backends.triton_ops.gemm.linear import prepare_linear
from atom.model_ops.backends.triton_ops.gemm.quantised_tiles import choose_tile, whole
from atom.model_ops.backends.triton_ops.gemm.w8a8_gemm import w8a8_linear
from atom.model_ops.backends.triton_ops.quantise_activations import quantise_groups, quantise_rows
from atom.model_ops.quantised.dequantise import dequantise
from atom.model_ops.quantised.quantise import quantise
from atom.model_ops.values import LinearWeight, Scales, WeightFormat
from atom.utils.device import native_fp8


# Triton's interpreter loses the carry of a mantissa that is rounded up, so halves some codes: what
# they are is a card's to show, that products are those of the codes is shown below.
@pytest.mark.gpu
@pytest.mark.parametrize("inner", [128, 320, 1100])
def test_groups_of_activations_keep_their_largest(device: torch.device, inner: int) -> None:
    x = torch.randn(5, inner, device=device)
    x[2] = 0
    dtype = native_fp8(device)
    assert dtype is not None
    codes, scales = quantise_groups(x, dtype)
    for group in range(scales.shape[1]):
        part = x[:, group * 128 : group * 128 + 128]
        own = codes[:, group * 128 : group * 128 + 128].float() * scales[:, group : group + 1]
        largest = part.abs().amax(1)
        torch.testing.assert_close(own.abs().amax(1), largest)
        step = largest[:, None] / 448 * 32  # between the largest two numbers
        assert ((own - part).abs() <= step).all()


def test_rows_of_activations_are_rounded_to_integers(device: torch.device) -> None:
    x = torch.randn(5, 300, device=device)
    codes, scale = quantise_rows(x)
    assert ((codes.float() * scale - x).abs() <= scale * 0.5001).all()
    assert (codes.abs().amax(1) == 127).all()


@pytest.mark.parametrize("kind", [WeightFormat.FP8, WeightFormat.FP8_BLOCKS, WeightFormat.INT8])
@pytest.mark.parametrize("tokens", [1, 32, 33, 150])
def test_a_product_is_that_of_the_codes(
    device: torch.device, kind: WeightFormat, tokens: int
) -> None:
    x, inner, outputs = torch.randn(tokens, 320, device=device), 320, 144
    weight = torch.randn(outputs, inner, device=device)
    block = (128, 128) if kind is WeightFormat.FP8_BLOCKS else (1, inner)
    data, scale = quantise(weight, kind, block)
    w = prepare_linear(LinearWeight(data, None, Scales(kind, scale, block, torch.float32)))
    assert w.scales is not None
    if kind is WeightFormat.INT8:
        codes, x_scale = quantise_rows(x)
        wide = x_scale
    else:
        codes, x_scale = quantise_groups(x, w.data.dtype)
        wide = x_scale.repeat_interleave(128, 1)[:, :inner]
    rounded = codes.double() * wide.double()
    expected = rounded @ dequantise(w.data, w.scales).double().t()
    out = whole(w8a8_linear(x, w), torch.float32)
    # A card adds a group's products with some 13 bits of fraction (arXiv 2412.19437, 3.3.2).
    narrow = kind is not WeightFormat.INT8 and device.type == "cuda"
    assert_rows_agree(out, expected, torch.float32, slack=40 if narrow else 1)


def test_few_tokens_are_divided_over_the_inner_dimension(device: torch.device) -> None:
    tile = choose_tile(torch.empty(1, 8192), LinearWeight(torch.empty(64, 8192)), 128)
    assert tile.splits > 1
    assert tile.splits * tile.slice >= 8192
    many = LinearWeight(torch.empty(4096, 8192, device="meta"))
    assert choose_tile(torch.empty(256, 8192), many, 128).splits == 1
    weight, x = torch.randn(32, 4096, device=device), torch.randn(2, 4096, device=device)
    data, scale = quantise(weight, WeightFormat.INT8, (1, 4096))
    w = LinearWeight(data, None, Scales(WeightFormat.INT8, scale, (1, 4096), torch.float32))
    parts = w8a8_linear(x, w)
    assert parts.dim() == 3
    codes, x_scale = quantise_rows(x)
    assert w.scales is not None
    expected = codes.double() * x_scale.double() @ dequantise(w.data, w.scales).double().t()
    assert_rows_agree(parts.sum(0), expected, torch.float32)
