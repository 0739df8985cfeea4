"""The kernels that take eight 4-bit codes of a word at once: with the constants of real shapes."""

from __future__ import annotations

from typing import Any

from atom.model_ops.backends.triton_ops.gemm import (
    packed_int32_gemm,
    packed_int32_gemv,
    packed_int32_inputs,
)

Constants = dict[str, Any]

_TYPES = {
    "w_ptr": "*i32", "scale_ptr": "*fp16", "zero_ptr": "*u8", "order_ptr": "*i32",
    "total_ptr": "*fp32",
}  # fmt: skip
_FP4 = {"FP4": True, "total_ptr": None, "zero_ptr": None}
PACKED_INT32: list[tuple[str, Any, Constants, Constants]] = [
    *(
        (f"{name}, {tokens} tokens of packed int32", packed_int32_gemm._packed_int32_kernel,
         {"BLOCK_T": tokens, "BLOCK_N": 64 if tokens < 64 else 128, "HAS_BIAS": False,
          "bias_ptr": None, "FP4": False, "EVEN": True, **constants},
         {"num_stages": 3 if tokens < 64 else 2, "num_warps": 8 if tokens > 64 else 4,
          "even": ("N", "K", "slice", "row"), "types": _TYPES | types})
        for name, tokens, constants, types in [
            ("int4", 64, {"BLOCK_K": 128, "GROUP": 128}, {}),
            ("int4", 16, {"BLOCK_K": 128, "GROUP": 128, "zero_ptr": None}, {}),
            ("int4 in groups of 64", 128, {"BLOCK_K": 64, "GROUP": 64}, {}),
            ("int4 in groups of 32", 64, {"BLOCK_K": 128, "GROUP": 32, "zero_ptr": None}, {}),
            ("int4 in groups of 32 with zeros", 32, {"BLOCK_K": 128, "GROUP": 32}, {}),
            ("mxfp4", 16, {"BLOCK_K": 128, "GROUP": 32, **_FP4}, {"scale_ptr": "*u8"}),
            ("mxfp4", 128, {"BLOCK_K": 128, "GROUP": 32, **_FP4}, {"scale_ptr": "*u8"}),
            ("mxfp4 in float16", 64, {"BLOCK_K": 128, "GROUP": 32, **_FP4},
             {"scale_ptr": "*u8", "x_ptr": "*fp16"}),
        ]
    ),
    ("ordered inputs of packed int32", packed_int32_inputs._packed_inputs_kernel,
     {"BLOCK_T": 8, "BLOCK_K": 128, "CHUNK": 32, "LARGER": 2.0**60},
     {"num_warps": 1, "types": _TYPES}),
    ("int4, one token", packed_int32_gemv._packed_gemv_kernel,
     {"BLOCK_N": 16, "WORDS": 256, "GROUP": 128, "EVEN": True, "bias_ptr": None,
      "order_ptr": None}, {"num_stages": 1, "types": _TYPES}),
    ("ordered int4, one token", packed_int32_gemv._packed_gemv_kernel,
     {"BLOCK_N": 8, "WORDS": 256, "GROUP": 32, "EVEN": False}, {"num_stages": 1, "types": _TYPES}),
]  # fmt: skip
