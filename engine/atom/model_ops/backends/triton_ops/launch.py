"""What launches need to know about the device, asked once.

Kernels are the same on CUDA and ROCm; where a number of programs depends on the card, it comes from
here. In Triton's interpreter (TRITON_INTERPRET=1, CPU tensors) the answers are small constants.
"""

from __future__ import annotations

from functools import cache

import torch

from atom.model_ops.values import IndexCache, LatentCache, LayerCache

# Multiprocessors that the interpreter pretends to have: enough to take every path of a decision.
_INTERPRETED_UNITS = 4


@cache
def compute_units(device: torch.device) -> int:
    """Multiprocessors (CUDA) or compute units (ROCm)."""
    if device.type == "cpu":
        return _INTERPRETED_UNITS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def shared_bytes(device: torch.device) -> int:
    """Of memory that a program may have to itself on its multiprocessor."""
    properties = torch.cuda.get_device_properties(device)
    return int(
        getattr(properties, "shared_memory_per_block_optin", 0)
        or properties.shared_memory_per_block
    )


def next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()


def head_lanes(head_dim: int) -> int:
    """Lanes that a kernel gives to a head: a power of two, and as many as a tensor core takes."""
    return max(16, next_power_of_2(head_dim))


def fp8_constants(cache: LayerCache) -> dict[str, bool | float]:
    """Whether a cache is in fp8, and the largest number of its dtype."""
    scaled = cache.k_scale is not None
    return {"FP8": scaled, "LIMIT": float(torch.finfo(cache.k.dtype).max) if scaled else 0.0}


def fp8_limit(cache: LatentCache | IndexCache) -> float:
    """The largest number of a cache in fp8; 0 of a plain one."""
    if cache.scale is None:
        return 0.0
    stored = cache.entries if isinstance(cache, LatentCache) else cache.keys
    return float(torch.finfo(stored.dtype).max)


def warps_for(elements: int, elements_per_warp: int = 512, most: int = 8) -> int:
    """Warps for a program over so many elements, so that each thread has a few wide loads."""
    return max(1, min(most, next_power_of_2(elements) // elements_per_warp))
