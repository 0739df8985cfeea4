"""Which functions of AITER an operation calls for a case, by the names of library.py."""

from __future__ import annotations

from collections.abc import Iterator

from atom.model_ops.backends.aiter_ops.limits import is_for_assembly
from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.quantised.cached_heads import FP8_DTYPES
from atom.model_ops.values import WeightFormat

_CACHED = ("qk_norm_rope_store", "paged_attention", "attention")
_ALWAYS: dict[str, tuple[str, ...]] = {
    "rms_norm": ("rmsnorm2d_fwd",),
    "norm": ("rmsnorm2d_fwd", "rmsnorm2d_fwd_with_add"),
    "act_and_mul": ("silu_and_mul",),
}
_OF_LATENT: dict[str, tuple[str, ...]] = {
    "mla_rope_store": (
        "rmsnorm2d_fwd",
        "rope_cached_positions_2c_fwd_inplace",
        "concat_and_cache_mla",
    ),
    "mla_attention": (
        "get_mla_metadata_info_v1",
        "get_mla_metadata_v1",
        "mla_decode_fwd",
        "flash_attn_varlen_func",
        "tgemm.mm",
    ),
    "sparse_mla_attention": (
        "get_mla_metadata_info_v1",
        "get_mla_metadata_v1",
        "mla_decode_fwd",
    ),
}
_OF_EXPERTS: dict[str, tuple[str, ...]] = {
    "route": ("topk_softmax", "grouped_topk", "biased_grouped_topk"),
    "prepare_experts": ("shuffle_weight",),
    "experts": ("fused_moe", "ActivationType", "QuantType"),
}
_OF_FORMAT: dict[WeightFormat, tuple[str, ...]] = {
    WeightFormat.PLAIN: ("tgemm.mm",),
    WeightFormat.FP8: (
        "per_token_quant_hip", "gemm_a8w8", "gemm_a8w8_bpreshuffle", "shuffle_weight",
    ),
    WeightFormat.FP8_BLOCKS: (
        "per_group_quant_hip", "gemm_a8w8_blockscale_bpreshuffle", "shuffle_weight",
    ),
    WeightFormat.INT8: ("per_token_quant_hip", "gemm_a8w8"),
    WeightFormat.MXFP4: (
        "gemm_a16wfp4", "gemm_a4w4", "per_1x32_f4_quant_hip", "shuffle_weight", "e8m0_shuffle",
    ),
}  # fmt: skip


def functions_of(op: str, case: OpCase) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*_ALWAYS.get(op, ()), *_of_case(op, case))))


def _of_case(op: str, case: OpCase) -> Iterator[str]:
    if op in ("prepare_linear", "linear"):
        for kind in case.formats:
            yield from _OF_FORMAT.get(kind, ())
    if op in ("norm_linear", "norm_gated_linear") and WeightFormat.FP8 in case.formats:
        yield from ("rmsnorm2d_fwd_with_dynamicquant", "rmsnorm2d_fwd_with_add_dynamicquant")
    if op in _CACHED and case.layers.attention:
        yield from (
            "fused_qk_norm_rope_cache_quant_shuffle",
            "rope_cached_positions_2c_fwd_inplace",
            "flash_attn_varlen_func",
        )
        is_fp8 = case.kv_dtype in FP8_DTYPES
        yield "reshape_and_cache_with_pertoken_quant" if is_fp8 else "reshape_and_cache"
        for shape in case.layers.attention:
            if is_for_assembly(shape):
                yield "pa_fwd_asm"
            else:
                yield from ("pa_decode_gluon", "get_recommended_splits")
    if case.layers.latent:
        yield from _OF_LATENT.get(op, ())
    if case.experts.routings:
        yield from _OF_EXPERTS.get(op, ())
    if op == "prepare_experts" and WeightFormat.MXFP4 in case.experts.formats:
        yield from ("e8m0_shuffle", "shuffle_weight_a16w4", "shuffle_scale_a16w4")
