"""Both skinny kernels, in every kind of tile, equal a float64 product."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from atom.model_ops.backends.triton_ops.compile.tuning import SkinnyConfig
from atom.model_ops.backends.triton_ops.gemm.skinny_linear import skinny_linear
from atom.model_ops.values import LinearWeight
from tests.engine.ops.inputs import assert_rows_agree

gpu = pytest.mark.gpu
GEMV = SkinnyConfig("gemv", block_n=2, block_k=64, split_k=1, num_warps=4, num_stages=1)
DOT = SkinnyConfig("dot", block_n=16, block_k=32, split_k=2, num_warps=2, num_stages=2)
WIDE_DOT = SkinnyConfig("dot", block_n=32, block_k=128, split_k=8, num_warps=8, num_stages=2)


@pytest.mark.pairs
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=gpu)]
)
@pytest.mark.parametrize(
    ("config", "tokens"),
    [(GEMV, 1), (GEMV, 3), (GEMV, 4), (DOT, 1), (DOT, 8), (DOT, 13), (WIDE_DOT, 16)],
)
@pytest.mark.parametrize(
    ("outputs", "inner"),
    [(32, 128), (33, 100), pytest.param(1024, 3072, marks=gpu), pytest.param(999, 1111, marks=gpu)],
)
def test_skinny_product(
    device: torch.device, config: SkinnyConfig, tokens: int, outputs: int, inner: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    x = torch.randn(tokens, inner, device=device).to(dtype)
    weight = torch.randn(outputs, inner, device=device).to(dtype)
    bias = torch.randn(outputs, device=device).to(dtype)
    for offset in (None, bias):
        double = None if offset is None else offset.double()
        expected = F.linear(x.double(), weight.double(), double)
        assert_rows_agree(skinny_linear(x, LinearWeight(weight, offset), config), expected, dtype)
