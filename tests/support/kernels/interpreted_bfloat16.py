"""Arithmetic in bfloat16 for Triton's interpreter, which adds and multiplies the integers that such
numbers are stored as.

Sums, differences, products and what is converted from float32 are rounded to bfloat16, and to e4m3,
as a card rounds them, where the interpreter cuts off; a product of tiles is added up in float32.
For tests of kernels whose own arithmetic is in bfloat16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

_ROUNDED = (np.add, np.subtract, np.multiply)


def compute_in_bfloat16(patch: pytest.MonkeyPatch) -> None:
    """Until the patch is undone; nothing where kernels run on a card."""
    import triton.language as tl
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    binary, dot, cast = builder.binary_op, builder.create_dot, builder.cast_impl
    between_floats = builder.create_fp_to_fp

    def binary_op(self: Any, left: Any, right: Any, op: Any) -> Any:
        if left.dtype.scalar != tl.bfloat16 or op not in _ROUNDED:
            return binary(self, left, right, op)
        return interpreter.TensorHandle(
            _rounded(op(_wide(left.data), _wide(right.data))), tl.bfloat16
        )

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if source.dtype.scalar == tl.float32 and target.scalar == tl.bfloat16:
            return interpreter.TensorHandle(_rounded(source.data), tl.bfloat16)
        return cast(self, source, target)

    def create_fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source.dtype.scalar == tl.float32 and target.scalar == tl.float8e4nv:
            codes = torch.from_numpy(source.data).to(torch.float8_e4m3fn).view(torch.uint8)
            return interpreter.TensorHandle(codes.numpy(), tl.float8e4nv)
        return between_floats(self, source, target, rounding)

    def create_dot(self: Any, left: Any, right: Any, *rest: Any) -> Any:
        if left.dtype.scalar == tl.bfloat16:
            left, right = (
                interpreter.TensorHandle(_wide(side.data), tl.float32) for side in (left, right)
            )
        return dot(self, left, right, *rest)

    patch.setattr(builder, "binary_op", binary_op)
    patch.setattr(builder, "create_dot", create_dot)
    patch.setattr(builder, "cast_impl", cast_impl)
    patch.setattr(builder, "create_fp_to_fp", create_fp_to_fp)


def _wide(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def _rounded(numbers: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    wide = torch.from_numpy(np.asarray(numbers, dtype=np.float32))
    return wide.bfloat16().view(torch.int16).numpy().view(np.uint16)
