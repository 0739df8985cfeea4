"""The installed AITER: its functions by name, and which of them this release has.

Only this module imports `aiter`, and only when the backend is chosen. AITER's signatures change
between releases without notice. So no argument is passed by position, a keyword that is newer than
its function is passed only if `takes` allows it, and a missing function is a reason against an
operation instead of an error in a step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

# Module and attributes below it, by the name that adapters use.
_PLACES: dict[str, tuple[str, str]] = {
    "tgemm.mm": ("aiter.tuned_gemm", "tgemm.mm"),
    "gemm_a8w8": ("aiter", "gemm_a8w8"),
    "gemm_a8w8_bpreshuffle": ("aiter", "gemm_a8w8_bpreshuffle"),
    "gemm_a8w8_blockscale": ("aiter", "gemm_a8w8_blockscale"),
    "gemm_a8w8_blockscale_bpreshuffle": ("aiter", "gemm_a8w8_blockscale_bpreshuffle"),
    "gemm_a16wfp4": ("aiter.ops.triton.gemm.basic.gemm_a16wfp4", "gemm_a16wfp4"),
    "gemm_a4w4": ("aiter", "gemm_a4w4"),
    "per_1x32_f4_quant_hip": ("aiter", "per_1x32_f4_quant_hip"),
    "e8m0_shuffle": ("aiter.utility.fp4_utils", "e8m0_shuffle"),
    "shuffle_weight_a16w4": ("aiter.ops.shuffle", "shuffle_weight_a16w4"),
    "shuffle_scale_a16w4": ("aiter.ops.shuffle", "shuffle_scale_a16w4"),
    "per_token_quant_hip": ("aiter", "per_token_quant_hip"),
    "per_group_quant_hip": ("aiter", "per_group_quant_hip"),
    "shuffle_weight": ("aiter.ops.shuffle", "shuffle_weight"),
    "rmsnorm2d_fwd": ("aiter", "rmsnorm2d_fwd"),
    "rmsnorm2d_fwd_with_add": ("aiter", "rmsnorm2d_fwd_with_add"),
    "rmsnorm2d_fwd_with_dynamicquant": ("aiter", "rmsnorm2d_fwd_with_dynamicquant"),
    "rmsnorm2d_fwd_with_add_dynamicquant": ("aiter", "rmsnorm2d_fwd_with_add_dynamicquant"),
    "silu_and_mul": ("aiter", "silu_and_mul"),
    "fused_qk_norm_rope_cache_quant_shuffle": ("aiter", "fused_qk_norm_rope_cache_quant_shuffle"),
    "rope_cached_positions_2c_fwd_inplace": ("aiter", "rope_cached_positions_2c_fwd_inplace"),
    "reshape_and_cache": ("aiter", "reshape_and_cache"),
    "reshape_and_cache_with_pertoken_quant": ("aiter", "reshape_and_cache_with_pertoken_quant"),
    "pa_fwd_asm": ("aiter", "pa_fwd_asm"),
    "pa_decode_gluon": ("aiter.ops.triton.gluon.pa_decode_gluon", "pa_decode_gluon"),
    "get_recommended_splits": ("aiter.ops.triton.gluon.pa_decode_gluon", "get_recommended_splits"),
    "flash_attn_varlen_func": ("aiter", "flash_attn_varlen_func"),
    "topk_softmax": ("aiter", "topk_softmax"),
    "grouped_topk": ("aiter", "grouped_topk"),
    "biased_grouped_topk": ("aiter", "biased_grouped_topk"),
    "fused_moe": ("aiter.fused_moe", "fused_moe"),
    "ActivationType": ("aiter", "ActivationType"),
    "QuantType": ("aiter", "QuantType"),
    "CustomAllreduce": (
        "aiter.dist.device_communicators.custom_all_reduce",
        "CustomAllreduce",
    ),
    "concat_and_cache_mla": ("aiter", "concat_and_cache_mla"),
    "get_mla_metadata_info_v1": ("aiter", "get_mla_metadata_info_v1"),
    "get_mla_metadata_v1": ("aiter", "get_mla_metadata_v1"),
    "mla_decode_fwd": ("aiter.mla", "mla_decode_fwd"),
}


@dataclass(frozen=True, slots=True)
class Library:
    """The functions of AITER that were found. found: by the adapters' names; missing: why the
    others are not, by name."""

    found: dict[str, Any] = field(repr=False)
    missing: dict[str, str]
    version: str

    def __getitem__(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = self.found[name]
        return function

    def reasons_without(self, *names: str) -> tuple[str, ...]:
        """Return a reason for each of these functions that this release lacks."""
        return tuple(
            f"aiter {self.version} has no {name} ({self.missing[name]})"
            for name in names
            if name in self.missing
        )

    def takes(self, name: str, keyword: str) -> bool:
        """Return whether the function has a parameter of this name in this release."""
        return keyword in inspect.signature(self.found[name]).parameters


class LibraryError(Exception):
    """AITER cannot be used here at all; the message gives the reason and the remedy."""


def load_library() -> Library:
    """Import AITER. Raises `LibraryError`."""
    if find_spec("aiter") is None:
        raise LibraryError(
            "aiter is not installed (the image images/engine/Dockerfile.rocm has it)"
        )
    try:
        version = str(getattr(import_module("aiter"), "__version__", "of unknown version"))
    except Exception as error:  # its import compiles and asks the driver: anything may fail
        raise LibraryError(f"import aiter failed: {type(error).__name__}: {error}") from error
    found: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for name, (module, path) in _PLACES.items():
        try:
            target: Any = import_module(module)
            for part in path.split("."):
                target = getattr(target, part)
            found[name] = target
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"
    if not found:
        raise LibraryError(
            "the installed package aiter is not AMD's: PyPI's aiter is another project; uninstall "
            "it, and build AMD's from github.com/ROCm/aiter"
        )
    return Library(found, missing, version)
