"""Facts about the device that launches need, queried once.

Kernels are the same on CUDA and ROCm; numbers of programs that depend on the card come from here.
In Triton's interpreter (TRITON_INTERPRET=1, CPU tensors) the answers are small constants.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton

from atom.model_ops.index_values import IndexCache
from atom.model_ops.values import LatentCache, LayerCache

# Multiprocessors that the interpreter pretends to have: enough to take every path of a decision.
_INTERPRETED_UNITS = 4


@cache
def compute_units(device: torch.device) -> int:
    """Return the number of multiprocessors (CUDA) or compute units (ROCm)."""
    if device.type == "cpu":
        return _INTERPRETED_UNITS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def shared_bytes(device: torch.device) -> int:
    """Return the bytes of shared memory that one program may use on its multiprocessor."""
    properties = torch.cuda.get_device_properties(device)
    return int(
        getattr(properties, "shared_memory_per_block_optin", 0)
        or properties.shared_memory_per_block
    )


# Asked by launches and, of constants, by kernels: a kernel then needs no parameter for its padding.
@triton.constexpr_function  # type: ignore[untyped-decorator]
def next_power_of_2(n: int) -> int:
    """Round up to a power of two."""
    return 1 << (n - 1).bit_length()


@triton.constexpr_function  # type: ignore[untyped-decorator]
def head_lanes(head_dim: int) -> int:
    """Return the lanes that a kernel gives to a head: a power of two, and at least a tensor core's
    16."""
    return max(16, 1 << (head_dim - 1).bit_length())


@triton.constexpr_function  # type: ignore[untyped-decorator]
def group_lanes(group: int) -> int:
    """Return the rows that decode attention gives to the query heads of a KV head: at least a
    tensor core's 16."""
    return max(16, 1 << (group - 1).bit_length())


@triton.constexpr_function  # type: ignore[untyped-decorator]
def constant(value: Any) -> Any:
    """Return a constant from a tuple in the form of a separate parameter: in the interpreter a
    Python number, which can multiply tensors."""
    return value


@triton.constexpr_function  # type: ignore[untyped-decorator]
def largest_fp8(dtype: Any) -> float:
    """Return the largest number of Triton's dtype: 448 for e4m3 on NVIDIA's cards and gfx950; 240
    for gfx942's type, whose bits mean half as much."""
    return {"fp8e4nv": 448.0, "fp8e4b8": 240.0, "fp8e5": 57344.0}[dtype.name]


def cache_pointers(
    cache: LayerCache,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Return the argument by which attention kernels take a paged cache: keys, values, and the
    scales of an fp8 cache."""
    return cache.k, cache.v, cache.k_scale, cache.v_scale


def fp8_limit(cache: LatentCache | IndexCache) -> float:
    """Return the largest number of an fp8 cache; 0 for a plain one."""
    if cache.scale is None:
        return 0.0
    stored = cache.entries if isinstance(cache, LatentCache) else cache.keys
    return float(torch.finfo(stored.dtype).max)


def warps_for(elements: int, elements_per_warp: int = 512, most: int = 8) -> int:
    """Return the warps for a program over so many elements, so that each thread has a few wide
    loads."""
    return max(1, min(most, next_power_of_2(elements) // elements_per_warp))
