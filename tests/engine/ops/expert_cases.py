"""Cases of kernels of experts, as kernel_cases.py has others."""

from __future__ import annotations

from typing import Any

from atom.model_ops.activations import Activation, ClampedSwiGLU
from atom.model_ops.backends.triton_ops.activation import gating
from atom.model_ops.backends.triton_ops.gemm import dequantise_matrix
from atom.model_ops.backends.triton_ops.moe import (
    grouped_gemm,
    grouped_kernel,
    sort_and_quantise,
    sort_by_expert,
)
from atom.model_ops.backends.triton_ops.nvidia import fp8_hi_lo

_EXPERTS = {
    "EXPERTS": 128, "TOP_K": 8, "SEARCH": 256, "bias_ptr": None,
    "K": 2048, "N": 768, "BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 128,
    "TALL": 1, "WIDE": 0, "COLUMNS": 0, "PACKED": 0, "scale_ptr": None, "zero_ptr": None,
    "ORDERS": 0, "inputs_ptr": None, "index_ptr": None, "x_scale_ptr": None,
    "x_desc": None, "w_desc": None, "out_scale_ptr": None, "HI_LO": False,
}  # fmt: skip
_FP8_EXPERTS = {
    key: value for key, value in _EXPERTS.items() if key not in ("scale_ptr", "x_scale_ptr")
} | {"TALL": 128, "WIDE": 128, "COLUMNS": 16, "PACKED": 4}
_CODES = {"types": {"x_ptr": "fp8", "x_scale_ptr": "*fp32", "w_ptr": "fp8", "scale_ptr": "*fp32"}}
_HI_LO = {"types": {"x_ptr": "fp8", "w_ptr": "*i32", "scale_ptr": "*i32"}}
_PACKED_EXPERTS = {
    key: value
    for key, value in _EXPERTS.items()
    if key not in ("scale_ptr", "zero_ptr", "bias_ptr")
} | {"K": 2880, "N": 2880, "BLOCK_N": 64, "PACKED": 1}
_ORDERED_EXPERTS = {**_PACKED_EXPERTS, "WIDE": 64, "COLUMNS": 45, "ORDERS": 1}
del _ORDERED_EXPERTS["inputs_ptr"], _ORDERED_EXPERTS["index_ptr"]
INT4 = {
    "types": dict.fromkeys(("order_ptr", "index_ptr", "inputs_ptr"), "*i32")
    | {"w_ptr": "*u8", "scale_ptr": "*fp16", "zero_ptr": "*u8"}
}
_W13, _W2 = {"GATED": True, "WEIGHED": False}, {"GATED": False, "WEIGHED": True}
_NO_ORDER = {"order_ptr": None, "counts_ptr": None}
SILU = gating(Activation.SILU)
RELU2 = gating(Activation.RELU2)
CLAMPED = gating(ClampedSwiGLU(1.702, 7.0))

_SORTED_ONLY = ("EXPERTS", "HI_LO", "x_desc", "w_desc")
_SEARCHED_ONLY = ("PROGRAMS", "SEARCH")


def grouped(constants: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The kernel that multiplies pairs as PROGRAMS says, and the constants that it has of these;
    without a gate there is no activation."""
    is_sorted = constants["PROGRAMS"] == 2
    left_out = {"GATED", *_NO_ORDER, *(_SEARCHED_ONLY if is_sorted else _SORTED_ONLY)}
    if not constants["GATED"]:
        left_out |= set(SILU)
    own = {key: value for key, value in constants.items() if key not in left_out}
    if not constants["GATED"]:
        own["activation"] = None
    kernel = grouped_kernel.sorted_gemm_kernel if is_sorted else grouped_kernel.searched_gemm_kernel
    return kernel, own


# Name, kernel, constants and options.
_EXPERT_CASES: list[Any] = [
    ("experts of pairs", grouped_kernel,
     {**_EXPERTS, **_NO_ORDER, **SILU, "PROGRAMS": 0, **_W13}, {}),
    ("experts of weighed inputs", grouped_kernel,
     {**_EXPERTS, **_NO_ORDER, **SILU, "TOP_K": 1, "PROGRAMS": 0, "GATED": True,
      "WEIGHED": True}, {}),
    ("experts' w2", grouped_kernel,
     {**_EXPERTS, **_NO_ORDER, **SILU, "PROGRAMS": 1, **_W2}, {}),
    ("experts in order", grouped_kernel,
     {**_EXPERTS, **CLAMPED, "PROGRAMS": 2, **_W13, "BLOCK_M": 128,
      "BLOCK_N": 64, "BLOCK_K": 64}, {"num_warps": 8}),
    ("experts without a gate", grouped_kernel,
     {**_EXPERTS, **RELU2, "PROGRAMS": 2, **_W13, "BLOCK_M": 64, "BLOCK_N": 64}, {}),
    ("experts of fp8 blocks", grouped_kernel,
     {key: value for key, value in {
         **_EXPERTS, **_NO_ORDER, **SILU, "PROGRAMS": 0, **_W13, "TALL": 128, "WIDE": 128,
         "COLUMNS": 16,
     }.items() if key != "scale_ptr"},
     {"types": {"w_ptr": "fp8", "scale_ptr": "*fp32"}}),
    ("many tokens' experts of int8", grouped_kernel,
     {key: value for key, value in {
         **_EXPERTS, **SILU, "PROGRAMS": 2, **_W2, "BLOCK_M": 128, "BLOCK_N": 64,
         "BLOCK_K": 64, "WIDE": 2048, "COLUMNS": 1,
     }.items() if key != "scale_ptr"},
     {"num_warps": 8, "types": {"w_ptr": "*i8", "scale_ptr": "*fp32"}}),
    ("experts of mxfp4", grouped_kernel,
     {**_PACKED_EXPERTS, **_NO_ORDER, **CLAMPED, "PROGRAMS": 0, **_W13, "WIDE": 32,
      "COLUMNS": 90, "PACKED": 3, "zero_ptr": None},
     {"num_stages": 4, "types": {"w_ptr": "*i32", "scale_ptr": "*u8"}}),
    *(
        (f"experts of mxfp4 with hi/lo terms, {name}", grouped_kernel,
         {**{key: value for key, value in _PACKED_EXPERTS.items() if key != "x_scale_ptr"},
          **_NO_ORDER, **CLAMPED, "PROGRAMS": 1, **stack, "WIDE": 32, "COLUMNS": 24, "PACKED": 5,
          "zero_ptr": None},
         {"num_stages": 3, "maxnreg": 128, **_HI_LO})
        for name, stack in (("w13", _W13), ("w2", _W2))
    ),
    ("w13 of mxfp4 with hi/lo terms, sorted pairs, written in them",
     grouped_kernel,
     {**{key: value for key, value in _PACKED_EXPERTS.items()
         if key not in ("x_scale_ptr", "out_scale_ptr")},
      **CLAMPED, "PROGRAMS": 2, **_W13, "WIDE": 32, "COLUMNS": 24, "PACKED": 5,
      "zero_ptr": None, "BLOCK_M": 32, "BLOCK_N": 32, "HI_LO": True},
     {"num_stages": 3, "types": {**_HI_LO["types"], "out_ptr": "fp8",
                                 "out_scale_ptr": "*fp32"}}),
    ("hi/lo terms", fp8_hi_lo._split_hi_lo_kernel, {"K": 2880, "BLOCK": 4096},
     {"num_warps": 8, "types": {"codes_ptr": "fp8"}}),
    ("hi/lo terms and the order", sort_and_quantise._sort_and_split_kernel,
     {"K": 2880, "BLOCK": 4096, "EXPERTS": 32, "CHUNK": 1024},
     {"num_warps": 8, "types": {"codes_ptr": "fp8"}}),
    ("experts in fp8", grouped_kernel,
     {**_FP8_EXPERTS, **_NO_ORDER, **SILU, "PROGRAMS": 1, **_W13, "BLOCK_N": 64}, _CODES),
    ("w13 in fp8 for w2 in fp8", grouped_kernel,
     {**{key: value for key, value in _FP8_EXPERTS.items() if key != "out_scale_ptr"},
      **_NO_ORDER, **SILU, "PROGRAMS": 1, **_W13, "BLOCK_N": 128},
     {"types": {**_CODES["types"], "out_ptr": "fp8", "out_scale_ptr": "*fp32"}}),
    ("many tokens' experts in fp8", grouped_kernel,
     {**_FP8_EXPERTS, **SILU, "PROGRAMS": 2, **_W13, "BLOCK_M": 128, "BLOCK_N": 64},
     {**_CODES, "num_warps": 8}),
    ("many tokens' w2 in fp8", grouped_kernel,
     {**_FP8_EXPERTS, **SILU, "PROGRAMS": 2, **_W2, "K": 704, "N": 2048, "BLOCK_M": 128,
      "BLOCK_N": 64, "COLUMNS": 6}, {**_CODES, "num_warps": 8}),
    ("dequantised 8 bits", dequantise_matrix._dequantise_8bit_kernel,
     {"K": 2048, "TALL": 128, "WIDE": 128, "ROWS": 4, "BLOCK_K": 1024},
     {"types": {"w_ptr": "fp8", "scale_ptr": "*fp32"}}),
    ("dequantised 4 bits", dequantise_matrix._dequantise_4bit_kernel,
     {"K": 2880, "groups": 45, "GROUP": 64, "FP4": False, "INTERLEAVED": False, "ROWS": 4,
      "BLOCK_K": 1024, "index_ptr": None}, INT4),
    ("dequantised interleaved mxfp4", dequantise_matrix._dequantise_4bit_kernel,
     {"K": 2880, "groups": 96, "GROUP": 32, "FP4": True, "INTERLEAVED": True, "ROWS": 4,
      "BLOCK_K": 1024, "index_ptr": None, "zero_ptr": None},
     {"types": {"w_ptr": "*u8", "scale_ptr": "*u8"}}),
    ("dequantised 4 bits of parted groups", dequantise_matrix._dequantise_4bit_kernel,
     {"K": 2880, "groups": 90, "GROUP": 64, "FP4": False, "INTERLEAVED": False, "ROWS": 4,
      "BLOCK_K": 1024}, INT4),
    ("experts of mxfp4 byte by byte", grouped_kernel,
     {**_PACKED_EXPERTS, **_NO_ORDER, **CLAMPED, "PROGRAMS": 1, **_W2, "WIDE": 32,
      "COLUMNS": 90, "PACKED": 2, "zero_ptr": None},
     {"num_stages": 3, "types": {"x_ptr": "*fp16", "w_ptr": "*u8", "scale_ptr": "*u8"}}),
    ("many tokens' experts of int4", grouped_kernel,
     {**_PACKED_EXPERTS, **SILU, "PROGRAMS": 2, **_W13, "WIDE": 64, "COLUMNS": 45,
      "BLOCK_M": 128},
     {"num_warps": 8, "types": {"w_ptr": "*u8", "scale_ptr": "*fp16", "zero_ptr": "*u8"}}),
    ("experts of ordered int4", grouped_kernel,
     {**_ORDERED_EXPERTS, **_NO_ORDER, **SILU, "PROGRAMS": 0, **_W13, "index_ptr": None},
     INT4),
    ("experts of ordered int4, two orders", grouped_kernel,
     {**_ORDERED_EXPERTS, **SILU, "PROGRAMS": 2, **_W13, "BLOCK_M": 64, "BLOCK_K": 64,
      "ORDERS": 2, "index_ptr": None}, INT4),
    ("experts' w2 of ordered int4, parted among ranks", grouped_kernel,
     {**_ORDERED_EXPERTS, **_NO_ORDER, **SILU, "PROGRAMS": 1, **_W2, "BLOCK_M": 32,
      "BLOCK_K": 64, "COLUMNS": 90}, INT4),
    ("order", sort_by_expert._order_kernel, {"CHUNK": 1024}, {}),
    ("counts of parts", sort_by_expert._count_parts_kernel, {"PART": 8192, "CHUNK": 1024},
     {"types": {"parts_ptr": "*i32"}}),
    ("order of parts", sort_by_expert._order_parts_kernel,
     {"EXPERTS": 96, "EXPERTS_PADDED": 128, "PART": 8192, "CHUNK": 1024},
     {"types": {"parts_ptr": "*i32"}}),
    ("sum of experts", grouped_gemm._sum_kernel, {"PARTS": 8, "BLOCK": 1024}, {}),
]  # fmt: skip

EXPERT_CASES = [
    (name, *(grouped(constants) if kernel is grouped_kernel else (kernel, constants)), options)
    for name, kernel, constants, options in _EXPERT_CASES
]

# Stacks whose tiles are copied by description: constants, and the types of what is by_tma.
BY_TMA: list[Any] = [
    (grouped({**_EXPERTS, **SILU, "PROGRAMS": 2, **stack, "BLOCK_M": 128, "BLOCK_K": 64})[1], types)
    for stack, types in (
        ({**_W13, "BLOCK_N": 128}, {"w_desc": "tensordesc<bf16[2, 128, 64]>"}),
        ({**_W2, "BLOCK_N": 256, "K": 768, "N": 2048},
         {"w_desc": "tensordesc<bf16[1, 256, 64]>", "x_desc": "tensordesc<bf16[128, 64]>"}),
    )
]  # fmt: skip
