"""Which part of the model a profiled kernel belongs to: by its name, and for products by its place.

A layer's kernels come in one order, attention or a state in the middle: what is multiplied first
after it is the output projection, then gates and ups, then down, then the next layer's qkv, or the
head if sampling follows. Pure; used by gpu_profile.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

_NAMED = {
    "attention": (
        "_decode_kernel",
        "_decode_append_kernel",
        "_verify_kernel",
        "_combine_",
        "_prefill_kernel",
        "sdpa",
        "flash",
    ),
    "states": (
        "_delta_net_kernel",
        "_delta_rule_kernel",
        "_chunk_systems_kernel",
        "_chunk_states_kernel",
        "_convolve_kernel",
        "_tails_kernel",
        "_gated_norm_kernel",
    ),
    "norm": ("_rms_norm_kernel",),
    "rope and store": ("_rope_store_kernel",),
    "activation": ("_act_and_mul_kernel",),
    "sampling": (
        "_score_kernel",
        "_pick_kernel",
        "_commit_kernel",
        "_groups_",
        "_least_",
        "_mask_",
    ),
    "product": ("nvjet", "gemm", "_split_k_kernel", "_gemv_kernel", "_dot_kernel", "_norm_linear"),
    "product's end": ("splitKreduce",),
}
_PRODUCTS = ("o", "gate and up", "down", "qkv")
OTHER, IDLE = "inputs and copies", "idle"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that ran. start, end: µs, of any clock."""

    name: str
    start: float
    end: float


def shares(kernels: Iterable[Kernel]) -> dict[str, float]:
    """Part → µs, and what the device idled from the first kernel's start to the last one's end.
    The kernels are whole steps of one stream."""
    ordered = sorted(kernels, key=lambda kernel: kernel.start)
    parts: dict[str, float] = defaultdict(float)
    for part, kernel in zip(_parts(ordered), ordered, strict=True):
        parts[part] += kernel.end - kernel.start
    end = ordered[0].start
    for kernel in ordered:
        parts[IDLE] += max(0.0, kernel.start - end)
        end = max(end, kernel.end)
    return dict(parts)


def _parts(ordered: list[Kernel]) -> list[str]:
    parts: list[str] = []
    place = _PRODUCTS.index("qkv")  # a step's first product has no attention before it
    newest = OTHER
    for kernel in ordered:
        part = _named(kernel.name)
        if part in ("attention", "states"):
            place = 0
        elif part == "sampling" and newest == "qkv":
            last = max(index for index, known in enumerate(parts) if known == "qkv")
            parts[last] = newest = "head"
        elif part == "product":
            part = newest = _PRODUCTS[place % len(_PRODUCTS)]
            place += 1
        elif part == "product's end":
            part = newest
        parts.append(part)
        if part == "sampling":
            place = _PRODUCTS.index("qkv")
    return parts


def _named(name: str) -> str:
    for part, names in _NAMED.items():
        if any(known in name for known in names):
            return part
    return OTHER
