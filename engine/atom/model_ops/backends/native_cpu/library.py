"""The compiled kernels in this process, with the types of their arguments.

`library()` compiles and loads them once; `why_not()` gives the reason if that is impossible here.
The kernels trust pointers, lengths and strides, so callers check these first: `floats` and
`integers` do, and return the address. The kernels check values that are indices. A trace of torch's
profiler shows the kernels by their names.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.autograd.profiler import record_function

from atom.utils.c_library import BuildError, CSources, built_library, find_toolchain

logger = logging.getLogger(__name__)

KERNELS = CSources(
    name="native_cpu",
    folder=Path(__file__).parent / "kernels",
    # No -ffast-math: -inf and NaN are inputs like others.
    flags=(
        "-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC",
        "-fvisibility=hidden", "-pthread",
    ),
)  # fmt: skip

_ADDRESS, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
_SIGNATURES = {
    "atom_linear": (None, [_ADDRESS] * 4 + [_LONG] * 3 + [_INT]),
    "atom_norm_linear": (
        None,
        [_ADDRESS] * 3 + [_FLOAT] + [_ADDRESS] * 5 + [_LONG] * 3 + [_INT],
    ),
    "atom_add_rms_norm": (None, [_ADDRESS] * 3 + [_FLOAT, _ADDRESS] + [_LONG] * 2 + [_INT]),
    "atom_silu_and_mul": (None, [_ADDRESS] * 2 + [_LONG] * 2 + [_INT]),
    "atom_rope_store": (
        _INT,
        [_ADDRESS] * 3 + [_FLOAT] + [_ADDRESS] * 5 + [_LONG] * 6 + [_INT],
    ),
    "atom_attention": (
        _INT,
        [_ADDRESS, _LONG] + [_ADDRESS] * 6 + [_LONG] * 10 + [_FLOAT, _INT],
    ),
    "atom_sample": (None, [_ADDRESS] * 5 + [_LONG] * 2 + [_INT]),
}


@cache
def library() -> SimpleNamespace:
    """Return the kernels as functions. Raises `BuildError` if they cannot be compiled or loaded."""
    started = time.perf_counter()
    with built_library(KERNELS, find_toolchain()) as path:
        try:
            loaded = ctypes.CDLL(str(path))
        except OSError as error:
            raise BuildError(f"the compiled kernels cannot be loaded: {error}") from error
    functions = {}
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
        functions[name] = _traced(name, function)
    logger.debug("CPU kernels from %s in %.2f s", path, time.perf_counter() - started)
    return SimpleNamespace(**functions)


def _traced(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a kernel so that torch's profiler records it. A record costs more than a small kernel,
    so it is only made while the profiler runs."""

    def call(*arguments: Any) -> Any:
        if not torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            return function(*arguments)
        with record_function(name):
            return function(*arguments)

    return call


@cache
def why_not() -> str | None:
    """Return the reason why the kernels cannot be used; None if they can."""
    try:
        library()
    except BuildError as error:
        logger.warning("the CPU's kernels are not compiled, PyTorch computes instead: %s", error)
        return str(error)
    return None


def floats(tensor: torch.Tensor) -> int:
    """Return the address of a contiguous float32 tensor; raises `TypeError` for any other."""
    if tensor.dtype is not torch.float32 or not tensor.is_contiguous():
        raise TypeError(f"contiguous float32 expected, not {tensor.dtype} {tensor.stride()}")
    return tensor.data_ptr()


def optional_floats(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else floats(tensor)


def integers(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """Return the address of a contiguous tensor of integers; raises `TypeError` for any other."""
    if tensor.dtype is not dtype or not tensor.is_contiguous():
        raise TypeError(f"contiguous {dtype} expected, not {tensor.dtype} {tensor.stride()}")
    return tensor.data_ptr()
