"""Products' kernels compiled as an H200 gets them, sizes that are multiples of 16 included."""

from __future__ import annotations

from typing import Any

from atom.model_ops.backends.triton_ops.compile.tuning import LinearConfig, SkinnyConfig
from atom.model_ops.backends.triton_ops.gemm import skinny_linear, split_k_linear
from tests.engine.ops.kernel_cases import UNSCALED
from tests.engine.ops.test_kernels_compile import compiled


def compiled_product(config: LinearConfig, tokens: int) -> Any:
    """Of a plain bfloat16 matrix of 4,096 × 4,096 without a bias."""
    own: dict[str, Any] = {
        "BLOCK_N": config.block_n, "BLOCK_K": config.block_k,
        "HAS_BIAS": False, "bias_ptr": None,
    }  # fmt: skip
    if isinstance(config, SkinnyConfig):
        kernel = skinny_linear._dot_kernel
        own |= {"TOKENS": max(8, tokens), "SPLIT_K": config.split_k, "EVEN": True, **UNSCALED}
    else:
        kernel = split_k_linear._split_k_kernel
        own |= {"BLOCK_T": tokens, "WEIGHTS_FIRST": config.weights_first, "GATED": False}
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    return compiled(kernel, own, {**options, "even": ("N", "K", "slice")}, "H200")
