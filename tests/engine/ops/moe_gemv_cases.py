"""The kernels of few tokens' experts, of every format, and of one token with dense fp8: with the
constants of real shapes."""

from __future__ import annotations

from typing import Any

from atom.model_ops.activations import Activation, ClampedSwiGLU
from atom.model_ops.backends.triton_ops.activation import gating
from atom.model_ops.backends.triton_ops.gemm import w8a16_gemv
from atom.model_ops.backends.triton_ops.moe import gemv_kernels

Constants = dict[str, Any]

_W13 = {
    "K": 2048, "N": 768, "SHARED": 0, "CHOOSES": True, "EXPERTS": 128, "TOP_K": 8,
    "SIGMOID": False, "RENORMALIZE": True, "SCALE": 1.0, "ROWS": 16,
    "WEIGHED": False, "BLOCK_K": 256, "INTERLEAVED": False,
    "router_bias_ptr": None, "score_bias_ptr": None, "scale_ptr": None,
    "bias_ptr": None, "shared_scale_ptr": None, "shared_bias_ptr": None, **gating(Activation.SILU),
}  # fmt: skip
_W2 = {
    "K": 768, "N": 2048, "SHARED": 0, "TOP_K": 8, "ROWS": 4, "BLOCK_K": 128,
    "BLOCK_SHARED": 1024, "INTERLEAVED": False, "UNROLL": 1, "TALL": 0, "WIDE": 0,
    "ALIGNED": 16, "scale_ptr": None, "bias_ptr": None, "shared_scale_ptr": None,
    "shared_bias_ptr": None,
}  # fmt: skip
_W13_8BIT = {key: value for key, value in _W13.items() if key != "INTERLEAVED"} | {"WIDE": 0}
_ALONE = {"SHARED": 0, "shared_ptr": None, "shared_scale_ptr": None}
_GPT_OSS = {"K": 2880, "N": 2880, "TOP_K": 4, **_ALONE}
_FP4 = (("mxfp4", False), ("interleaved mxfp4", True))
_BLOCKS = {"TALL": 128, "WIDE": 128, "ROWS": 4}
_LOGITS = {"types": {"logits_ptr": "*fp32"}}
_FP4_TYPES = {"types": {"w_ptr": "*i32", "scale_ptr": "*u8", "logits_ptr": "*fp32"}}
_SCALES = {"scale_ptr": "*fp32", "shared_scale_ptr": "*fp32", "logits_ptr": "*fp32"}
_FP8_TYPES = {"types": {"w_ptr": "fp8", "shared_ptr": "fp8", **_SCALES}}


def _with(constants: Constants, *pointers: str) -> Constants:
    """The constants but for these, which are there."""
    return {key: value for key, value in constants.items() if key not in pointers}


# Name, kernel, constants and options, as in kernel_cases.py.
MOE_GEMV: list[tuple[str, Any, Constants, Constants]] = [
    ("low-batch w13", gemv_kernels.w13_kernel,
     {**_W13, "shared_ptr": None}, _LOGITS),
    ("low-batch w13, shared", gemv_kernels.w13_kernel,
     {**_W13, "N": 1408, "SHARED": 2816, "EXPERTS": 64, "TOP_K": 6}, _LOGITS),
    ("low-batch w13 of weighed inputs", gemv_kernels.w13_kernel,
     {**_W13, "K": 5120, "N": 8192, "SHARED": 8192, "EXPERTS": 16, "TOP_K": 1,
      "SIGMOID": True, "RENORMALIZE": False, "WEIGHED": True}, _LOGITS),
    ("low-batch w13, chosen before", gemv_kernels.w13_kernel,
     {**_W13, "K": 7168, "N": 2048, "SHARED": 2048, "CHOOSES": False, "EXPERTS": 256}, _LOGITS),
    *(
        (f"low-batch w13 in {name}", gemv_kernels.w13_kernel,
         _with({**_W13, **_GPT_OSS, **gating(ClampedSwiGLU(1.702, 7.0)), "EXPERTS": 32,
                "BLOCK_K": 64, "INTERLEAVED": interleaved},
               "scale_ptr", "bias_ptr", "router_bias_ptr"), _FP4_TYPES)
        for name, interleaved in _FP4
    ),
    ("low-batch w13 in fp8 blocks", gemv_kernels.w13_8bit_kernel,
     _with({**_W13_8BIT, **_BLOCKS, **_ALONE, "BLOCK_K": 512, "UNROLL": 4}, "scale_ptr"),
     {**_FP8_TYPES, "num_warps": 1}),
    ("low-batch w13 in fp8 blocks, shared", gemv_kernels.w13_8bit_kernel,
     _with({**_W13_8BIT, **_BLOCKS, "K": 7168, "N": 2048, "SHARED": 2048, "CHOOSES": False,
            "EXPERTS": 256, "BLOCK_K": 1024, "UNROLL": 2},
           "scale_ptr", "shared_scale_ptr"),
     {**_FP8_TYPES, "num_warps": 1}),
    ("low-batch w13 in int8", gemv_kernels.w13_8bit_kernel,
     _with({**_W13_8BIT, **_ALONE, "TALL": 1, "ROWS": 4, "BLOCK_K": 512, "UNROLL": 4},
           "scale_ptr"),
     {"num_warps": 1, "types": {"w_ptr": "*i8", **_SCALES}}),
    ("low-batch w2", gemv_kernels.w2_kernel, {**_W2, "shared_ptr": None}, {}),
    ("low-batch w2, shared", gemv_kernels.w2_kernel,
     {**_W2, "K": 1408, "SHARED": 2816, "TOP_K": 6}, {}),
    *(
        (f"low-batch w2 in {name}", gemv_kernels.w2_kernel,
         _with({**_W2, **_GPT_OSS, "ROWS": 8, "ALIGNED": 8, "INTERLEAVED": interleaved},
               "scale_ptr", "bias_ptr"), _FP4_TYPES)
        for name, interleaved in _FP4
    ),
    ("low-batch w2 in fp8 blocks", gemv_kernels.w2_kernel,
     _with({**_W2, **_BLOCKS, **_ALONE, "ROWS": 2, "BLOCK_K": 256, "BLOCK_SHARED": 2048,
            "UNROLL": 3}, "scale_ptr"), _FP8_TYPES),
    ("low-batch w2 in fp8 with a scale per output, shared", gemv_kernels.w2_kernel,
     _with({**_W2, "K": 2048, "N": 7168, "SHARED": 2048, "TALL": 1, "ROWS": 4, "BLOCK_K": 512,
            "BLOCK_SHARED": 4096, "UNROLL": 4}, "scale_ptr", "shared_scale_ptr"), _FP8_TYPES),
]  # fmt: skip

_DENSE = {
    "N": 4096, "K": 4096, "GATED": False, "ROWS": 8, "BLOCK_K": 2048, "UNROLL": 1, "TALL": 128,
    "WIDE": 128, "bias_ptr": None,
}  # fmt: skip
_UNNORMED = dict.fromkeys(("residual_ptr", "norm_ptr", "residual_out_ptr"))
_DENSE_TYPES = {"types": {"w_ptr": "fp8", "scale_ptr": "*fp32"}}
W8A16_GEMV: list[tuple[str, Any, Constants, Constants]] = [
    ("norm and fp8 blocks", w8a16_gemv._w8a16_gemv_kernel, {**_DENSE, "N": 6144}, _DENSE_TYPES),
    ("norm and gated fp8 blocks", w8a16_gemv._w8a16_gemv_kernel,
     {**_DENSE, "N": 12288, "GATED": True, "ROWS": 4, "BLOCK_K": 512, "UNROLL": 2},
     {**_DENSE_TYPES, "num_warps": 1}),
    ("fp8 blocks, one token", w8a16_gemv._w8a16_gemv_kernel,
     {**_DENSE, **_UNNORMED, "K": 12288, "ROWS": 4, "UNROLL": 2}, _DENSE_TYPES),
    ("fp8 with a scale per output, one token, on an AMD card's wave",
     w8a16_gemv._w8a16_gemv_kernel,
     _with({**_DENSE, **_UNNORMED, "BLOCK_K": 4096, "TALL": 1, "WIDE": 0}, "bias_ptr"),
     _DENSE_TYPES),
]  # fmt: skip
