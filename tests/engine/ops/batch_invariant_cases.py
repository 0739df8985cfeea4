"""Kernels of the backend of reproducible answers, and the constants of real shapes that they are
compiled with, as in kernel_cases.py."""

from __future__ import annotations

from typing import Any

import pytest

from atom.model_ops.backends.batch_invariant import attention, linear, mla
from atom.model_ops.backends.triton_ops import norms

_NO_SCALES = {"k_scale_ptr": None, "v_scale_ptr": None}
_HEADS = {"HKV": 8, "D": 128, "GROUP": 4, "BLOCK_SIZE": 16, "BLOCK_M": 64, "BLOCK_N": 64}
_PLAIN = {"WINDOW": 0, "IN_CHUNKS": False, "SOFTCAP": 0.0}
_NO_SINKS, _NO_PARTS = {"sinks_ptr": None}, {"partial_ptr": None, "lse_ptr": None}
_LATENT = {
    "HQ": 16, "HEAD": 192, "RANK": 512, "ROPE": 64, "HEADS": 16, "TOKENS": 2, "BLOCK_SIZE": 16,
    "BLOCK_N": 32, "key_cache_ptr": None, "entry_scale_ptr": None,
}  # fmt: skip
_PRODUCT = {
    "x_k": 1, "w_k": 1, "LEAF_K": 1024, "BATCH": 1, "BLOCK_K": 64, "EVEN_N": True, "EVEN_K": True,
    "bias_ptr": None,
}  # fmt: skip
_NORM = {"HIDDEN": 4096, "BLOCK": 4096, "IN_TREE": True}
_STRIDES = ("K", "x_row", "w_n", "out_row", "x_batch", "w_batch", "out_batch", "out_leaf")
_FEW = {"BLOCK_M": 64, "BLOCK_N": 64}
_CALLS = {"even": _STRIDES, "num_warps": 4, "num_stages": 2}

CASES: list[Any] = [
    pytest.param(kernel, constants, options, id=name)
    for name, kernel, constants, options in [
        ("product of few rows", linear._product_kernel,
         {**_PRODUCT, **_FEW, "BLOCK_K": 128}, _CALLS),
        ("leaves of few rows", linear._product_kernel, {**_PRODUCT, **_FEW},
         {**_CALLS, "types": {"out_ptr": "*fp32"}}),
        ("product of heads, odd sizes", linear._product_kernel,
         {key: value for key, value in _PRODUCT.items() if key != "bias_ptr"}
         | {**_FEW, "BATCH": 16, "EVEN_N": False, "EVEN_K": False}, _CALLS),
        ("sum of leaves", linear._sum_kernel, {"PARTS": 4, "BLOCK": 1024}, {}),
        ("norm", norms._rms_norm_kernel, {**_NORM, "HAS_RESIDUAL": False, "PARTS": 1},
         {"num_warps": 16}),
        ("norm of leaves", norms._rms_norm_kernel, {**_NORM, "HAS_RESIDUAL": True, "PARTS": 4},
         {"num_warps": 16, "types": {"x_ptr": "*fp32"}}),
        ("attention of prompts", attention._attention_kernel,
         {**_HEADS, **_PLAIN, **_NO_SINKS, **_NO_PARTS, **_NO_SCALES, "ALONE": False, "SHARED": 1},
         {"num_warps": 4}),
        ("attention of decodes", attention._attention_kernel,
         {**_HEADS, **_PLAIN, **_NO_SINKS, **_NO_SCALES, "ALONE": True, "SHARED": 16},
         {"num_warps": 4}),
        ("attention in a window with sinks", attention._attention_kernel,
         {**_HEADS, **_PLAIN, **_NO_PARTS, **_NO_SCALES, "WINDOW": 128, "D": 64, "GROUP": 8,
          "ALONE": True, "SHARED": 1}, {"num_warps": 4}),
        ("attention of odd heads", attention._attention_kernel,
         {**_HEADS, **_PLAIN, **_NO_SINKS, **_NO_PARTS, **_NO_SCALES, "D": 80, "GROUP": 3,
          "SOFTCAP": 30.0, "ALONE": False, "SHARED": 1}, {"num_warps": 4}),
        ("fold", attention._fold_kernel,
         {"HQ": 32, "D": 128, "TOKENS": 16, "WINDOW": 0, "IN_CHUNKS": False, **_NO_SINKS},
         {"num_warps": 1}),
        ("MLA of prompts", mla._mla_kernel,
         {**_LATENT, **_NO_PARTS, "ALONE": False, "SHARED": 1}, {"num_warps": 8}),
        ("MLA of decodes", mla._mla_kernel, {**_LATENT, "ALONE": True, "SHARED": 16},
         {"num_warps": 8}),
    ]
]  # fmt: skip
