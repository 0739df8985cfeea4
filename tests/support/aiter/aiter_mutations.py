"""Mistakes that an adapter of AITER could make, each with the exercise that must notice it.

Most are made in what an adapter passes to a function of AITER, which is all that it does: swapped
and forgotten arguments, other layouts, other dtypes. The others replace a part of an adapter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Arguments = dict[str, Any]
Change = Callable[[Arguments], Arguments]


@dataclass(frozen=True)
class Mutation:
    """function: of AITER, by the adapters' name; change: of its arguments; exercise: what notices
    it, on this card and generation."""

    name: str
    function: str
    change: Change
    exercise: str
    card: str = "gfx942"
    generation: str = "2026-08"


def swap(first: str, second: str) -> Change:
    return lambda given: {**given, first: given[second], second: given[first]}


def drop(*names: str) -> Change:
    return lambda given: {key: value for key, value in given.items() if key not in names}


def rename(old: str, new: str) -> Change:
    return lambda given: {new if key == old else key: value for key, value in given.items()}


def put(name: str, make: Callable[[Any], Any]) -> Change:
    return lambda given: {**given, name: make(given.get(name))}


def constant(name: str, value: Any) -> Change:
    return put(name, lambda _: value)


def swapped_halves(name: str, dim: int) -> Change:
    """Gate and up in each other's place."""

    def change(x: torch.Tensor) -> torch.Tensor:
        swapped = torch.cat(tuple(reversed(x.view(torch.uint8).chunk(2, dim))), dim).view(x.dtype)
        if hasattr(x, "is_shuffled"):
            swapped.is_shuffled = True  # type: ignore[attr-defined]
        return swapped

    return put(name, change)


def strided(x: torch.Tensor) -> torch.Tensor:
    """Lay numbers out with a gap behind each."""
    wide = x.new_zeros((*x.shape, 2))
    wide[..., 0] = x
    return wide[..., 0]


def unaligned(x: torch.Tensor) -> torch.Tensor:
    """Begin behind an element, as a slice of a larger tensor may."""
    room = x.new_empty(x.numel() + 1)
    return room[1:].copy_(x.flatten()).view(x.shape)


def wider(x: torch.Tensor) -> torch.Tensor:
    return x.float()


def shifted(x: torch.Tensor) -> torch.Tensor:
    return x.roll(1, 0)


def all_of(
    exercise: str, function: str, *mistakes: tuple[str, Change], **where: str
) -> list[Mutation]:
    return [
        Mutation(f"{function}: {name}", function, change, exercise, **where)
        for name, change in mistakes
    ]


_PER_TOKEN = [
    *all_of(
        "norms",
        "rmsnorm2d_fwd",
        ("no epsilon", constant("epsilon", 0.0)),
        ("epsilon by another name", rename("epsilon", "eps")),
        ("strides", put("input", strided)),
        ("no alignment", put("input", unaligned)),
        ("float32 weights", put("weight", wider)),
        ("float32 inputs", put("input", wider)),
        ("an int for epsilon's place", constant("use_model_sensitive_rmsnorm", None)),
    ),
    *all_of(
        "norms",
        "rmsnorm2d_fwd_with_add",
        ("out and residual swapped", swap("out", "residual_out")),
        ("the residual goes elsewhere", put("residual_out", torch.zeros_like)),
        ("the result goes elsewhere", put("out", torch.zeros_like)),
        ("the weight is taken less one", constant("gemma_norm", True)),
        ("nothing is added", put("residual_in", torch.zeros_like)),
        ("no epsilon", constant("epsilon", 0.0)),
    ),
    *all_of(
        "activation",
        "silu_and_mul",
        ("up before gate", swapped_halves("input", 1)),
        ("out and input swapped", swap("out", "input")),
        ("a clamp", constant("limit", 1.0)),
        ("strides", put("input", strided)),
    ),
    *all_of(
        "product",
        "tgemm.mm",
        ("no bias", drop("bias")),
        ("a transposed matrix", put("weights", lambda w: w.t().contiguous())),
        ("another dtype", constant("otype", torch.float32)),
        ("a scale", put("scale_a", lambda _: torch.ones(1))),
        ("a float32 matrix", put("weights", wider)),
    ),
]
_QUANTISED = [
    *all_of(
        "fp8 product",
        "gemm_a8w8_bpreshuffle",
        ("activations' scale forgotten", put("x_scale", torch.ones_like)),
        ("matrix' scale forgotten", put("w_scale", torch.ones_like)),
        ("scales of other outputs", put("w_scale", shifted)),
        ("scales of other tokens", put("x_scale", shifted)),
        ("scales swapped", swap("x_scale", "w_scale")),
        ("a flat scale", put("w_scale", torch.flatten)),
        ("a bias", put("bias", lambda _: torch.ones(256))),
        ("a dtype left to the default", drop("dtype")),
        ("operands swapped", swap("XQ", "WQ")),
    ),
    *all_of(
        "fp8 product",
        "shuffle_weight",
        ("other tiles", constant("layout", (32, 16))),
    ),
    *all_of(
        "fp8 product",
        "per_token_quant_hip",
        ("the other e4m3", constant("quant_dtype", torch.float8_e4m3fn)),
        ("the default element", drop("quant_dtype")),
    ),
    *all_of(
        "normed fp8 product",
        "rmsnorm2d_fwd_with_dynamicquant",
        ("scales go elsewhere", put("yscale", torch.zeros_like)),
        ("no epsilon", constant("epsilon", 0.0)),
        ("flat scales", put("yscale", torch.flatten)),
        ("a group", constant("group_size", 128)),
    ),
    *all_of(
        "normed fp8 product",
        "rmsnorm2d_fwd_with_add_dynamicquant",
        ("the residual goes elsewhere", put("residual_out", torch.zeros_like)),
        ("codes go elsewhere", put("out", torch.zeros_like)),
        ("nothing is added", put("input", torch.zeros_like)),
        ("the other e4m3", put("out", lambda out: out.view(torch.float8_e4m3fn))),
    ),
    *all_of(
        "fp8 product of odd outputs",
        "gemm_a8w8",
        ("matrix' scale forgotten", put("w_scale", torch.ones_like)),
        ("strides", put("XQ", strided)),
    ),
    *all_of(
        "int8 product",
        "gemm_a8w8",
        ("activations' scale forgotten", put("x_scale", torch.ones_like)),
        ("a dtype left to the default", drop("dtype")),
    ),
    *all_of(
        "fp8 product of blocks",
        "per_group_quant_hip",
        ("scales by rows", constant("transpose_scale", False)),
        ("smaller groups", constant("group_size", 64)),
        ("the other e4m3", constant("quant_dtype", torch.float8_e4m3fn)),
    ),
    *all_of(
        "fp8 product of blocks",
        "gemm_a8w8_blockscale_bpreshuffle",
        ("matrix' scale forgotten", put("w_scale", torch.ones_like)),
        ("a transposed scale", put("w_scale", lambda scale: scale.t().contiguous())),
        ("scales swapped", swap("x_scale", "w_scale")),
    ),
    *all_of(
        "mxfp4 product",
        "gemm_a16wfp4",
        ("scales of other outputs", put("w_scales", shifted)),
        ("float32 scales", put("w_scales", wider)),
        ("nibbles swapped", put("w", lambda w: (w << 4) | (w >> 4))),
        card="gfx950",
    ),
]
_STORES = [
    *all_of(
        "attention",
        "rope_cached_positions_2c_fwd_inplace",
        ("pairs of neighbours", constant("rotate_style", 1)),
        ("cosines for sines", swap("cos", "sin")),
        ("positions of others", put("positions", lambda at: at.roll(1))),
        ("flat positions", put("positions", torch.flatten)),
        ("float32 tables", lambda given: {**given, "cos": wider(given["cos"])}),
        ("tables of whole heads", constant("reuse_freqs_front_part", False)),
        ("a copy is rotated", put("input_x", torch.clone)),
        ("a copy of keys is rotated", put("input_y", torch.clone)),
    ),
    *all_of(
        "attention",
        "reshape_and_cache",
        ("keys for values", swap("key", "value")),
        ("the other order of values", constant("asm_layout", False)),
        ("narrow slots", put("slot_mapping", lambda at: at.int())),
        ("slots of others", put("slot_mapping", lambda at: at.roll(1))),
        ("caches swapped", swap("key_cache", "value_cache")),
        ("an fp8 cache", constant("kv_cache_dtype", "fp8")),
        ("keys in four dimensions", put("key_cache", lambda k: k.flatten(1, 2))),
        ("strides", put("key", strided)),
    ),
    *all_of(
        "attention to fp8",
        "reshape_and_cache_with_pertoken_quant",
        ("scales swapped", swap("k_dequant_scales", "v_dequant_scales")),
        ("scales go elsewhere", put("k_dequant_scales", torch.zeros_like)),
        (
            "scales by token first",
            put("k_dequant_scales", lambda s: s.transpose(1, 2).contiguous()),
        ),
        ("keys for values", swap("key", "value")),
        card="gfx950",
    ),
    *all_of(
        "normed attention",
        "fused_qk_norm_rope_cache_quant_shuffle",
        ("weights swapped", swap("qw", "kw")),
        ("no epsilon", constant("eps", 0.0)),
        ("keys for values", swap("k", "v")),
        ("queries for keys", swap("q", "k")),
        ("counts of heads swapped", swap("num_heads_q", "num_heads_k")),
        ("positions for slots", swap("pos_ids", "slot_mapping")),
        ("narrow positions", put("pos_ids", lambda at: at.int())),
        ("pairs of neighbours", constant("is_neox_style", False)),
        ("float32 tables", put("cos_sin_cache", wider)),
        ("sines before cosines", swapped_halves("cos_sin_cache", 1)),
        ("values in four dimensions", put("v_cache", lambda v: v.flatten(1, 2))),
        ("an fp8 cache", constant("kv_cache_dtype", "fp8")),
    ),
    *all_of(
        "normed attention",
        "fused_qk_norm_rope_cache_quant_shuffle",
        ("no scale", constant("k_scale", None)),
        generation="2026-02",
    ),
    *all_of(
        "normed attention to fp8",
        "fused_qk_norm_rope_cache_quant_shuffle",
        ("scales swapped", swap("k_scale", "v_scale")),
        ("a plain cache", constant("kv_cache_dtype", "auto")),
        ("one scale for all", put("k_scale", lambda s: torch.ones(()))),
        card="gfx950",
    ),
]
_ATTENTION = [
    *all_of(
        "attention",
        "pa_fwd_asm",
        ("values for keys", swap("K", "V")),
        ("tables of others", put("block_tables", lambda table: table.flip(0))),
        ("a dense stride", constant("block_tables_stride0", 1)),
        ("contexts without the newest", put("context_lens", lambda n: n - 1)),
        ("contexts of others", put("context_lens", lambda n: n.flip(0))),
        ("wide tables", put("block_tables", lambda table: table.long())),
        ("the result goes elsewhere", put("out_", torch.zeros_like)),
        ("two queries a row", constant("max_qlen", 2)),
        ("scales of a plain cache", put("K_QScale", lambda _: torch.ones(12, 2, 16))),
        ("queries of other heads", put("Q", lambda q: q.roll(1, 1))),
        ("no alignment", put("Q", unaligned)),
    ),
    *all_of(
        "attention to fp8",
        "pa_fwd_asm",
        ("no scales", drop("K_QScale", "V_QScale")),
        ("scales swapped", swap("K_QScale", "V_QScale")),
        card="gfx950",
    ),
    *all_of(
        "attention with sinks",
        "pa_decode_gluon",
        ("a window", constant("sliding_window", 10)),
        ("no sinks", drop("sinks")),
        ("the usual scale", constant("softmax_scale", 64**-0.5)),
        ("no persistence", constant("ps", False)),
        ("other partitions", put("max_context_partition_num", lambda parts: parts + 1)),
        ("no scratch", drop("temporary_output")),
        ("computes in another dtype", constant("compute_type", torch.bfloat16)),
        ("values for keys", swap("key_cache", "value_cache")),
        ("tables for contexts", swap("block_tables", "context_lengths")),
    ),
    *all_of(
        "attention with sinks",
        "flash_attn_varlen_func",
        ("a window of two numbers", constant("window_size", (-1, -1))),
        ("a window", constant("window_size", (9, 0, 0))),
        ("no sinks", drop("sink_ptr")),
        ("the usual scale", drop("softmax_scale")),
    ),
    *all_of(
        "attention",
        "flash_attn_varlen_func",
        ("sees the future", constant("causal", False)),
        ("values for keys", swap("k", "v")),
        ("starts swapped", swap("cu_seqlens_q", "cu_seqlens_k")),
        ("wide starts", put("cu_seqlens_q", lambda starts: starts.long())),
        ("a shorter longest prompt", put("max_seqlen_q", lambda most: most - 1)),
        ("lengths swapped", swap("max_seqlen_q", "max_seqlen_k")),
        ("keys of others", put("k", shifted)),
        ("strides", put("k", strided)),
        ("no alignment", put("k", unaligned)),
        ("a soft cap", constant("logits_soft_cap", 30.0)),
    ),
]
_LATENT = [
    *all_of(
        "latent attention", "concat_and_cache_mla",
        ("keys for latents", swap("kv_c", "k_pe")),
        ("slots of others", put("slot_mapping", lambda at: at.roll(1))),
        ("a flat cache", put("kv_cache", lambda cache: cache.flatten(0, 1))),
        ("no scale", constant("scale", None)),
    ),
    *all_of(
        "latent attention", "get_mla_metadata_v1",
        ("info for starts", swap("work_info_set", "work_indptr")),
        ("maps swapped", swap("reduce_final_map", "reduce_partial_map")),
        ("starts of keys for queries'", swap("seqlens_qo_indptr", "seqlens_kv_indptr")),
        ("other heads", constant("num_heads_per_head_k", 8)),
        ("heads of keys for queries'", swap("num_heads_per_head_k", "num_heads_k")),
        ("no dtypes", drop("dtype_q", "dtype_kv")),
        ("other pages", constant("page_size", 64)),
    ),
    *all_of(
        "latent attention", "get_mla_metadata_info_v1",
        ("another batch", put("batch_size", lambda rows: rows + 1)),
        ("an odd number of heads", constant("num_head_qo", 12)),
        ("selected keys", constant("is_sparse", True)),
    ),
    *all_of(
        "latent attention", "mla_decode_fwd",
        ("the usual scale", drop("sm_scale")),
        ("no metadata", drop("work_meta_data")),
        ("info for starts", swap("work_info_set", "work_indptr")),
        ("indices of others", put("kv_indices", lambda at: at.flip(0))),
        ("other pages", constant("page_size", 64)),
        ("starts swapped", swap("qo_indptr", "kv_indptr")),
        ("empty last pages", put("kv_last_page_lens", torch.zeros_like)),
        ("a cache of blocks", put("kv_buffer", lambda kv: kv.view(12, 16, 1, 576))),
        ("the result goes elsewhere", put("o", torch.zeros_like)),
        ("a narrow result", put("o", lambda o: o[..., :128].contiguous())),
        ("a soft cap", constant("logit_cap", 30.0)),
    ),
    *all_of(
        "selected latent attention", "mla_decode_fwd",
        ("slots of others", put("kv_indices", lambda at: at.roll(24))),
        ("wide slots", put("kv_indices", lambda at: at.long())),
        ("pages of all", put("kv_indptr", lambda at: at // 2)),
        ("empty last pages", put("kv_last_page_lens", torch.zeros_like)),
        ("no scale", drop("sm_scale")),
    ),
]  # fmt: skip
_EXPERTS = [
    *all_of(
        "softmax router", "topk_softmax",
        ("weights for ids", swap("topk_weights", "topk_indices")),
        ("no renormalisation", constant("need_renorm", False)),
        ("ids go elsewhere", put("topk_indices", torch.zeros_like)),
        ("scratch for ids", swap("token_expert_indices", "topk_indices")),
        ("shared experts", constant("num_shared_experts", 1)),
    ),
    *all_of(
        "grouped router", "grouped_topk",
        ("sigmoids", constant("is_softmax", False)),
        ("groups swapped", swap("num_expert_group", "topk_group")),
        ("no factor", drop("routed_scaling_factor")),
        ("renormalised", constant("need_renorm", True)),
    ),
    *all_of(
        "sigmoid router", "biased_grouped_topk",
        ("no correction", put("correction_bias", torch.zeros_like)),
        ("a narrow correction", put("correction_bias", lambda bias: bias.half())),
        ("no renormalisation", constant("need_renorm", False)),
        ("no factor", drop("routed_scaling_factor")),
        ("weights for ids", swap("topk_weights", "topk_ids")),
        ("groups swapped", swap("num_expert_group", "topk_group")),
    ),
    *all_of(
        "experts", "fused_moe",
        ("matrices swapped", swap("w1", "w2")),
        ("up before gate", swapped_halves("w1", 1)),
        ("weights for ids", swap("topk_weight", "topk_ids")),
        ("weights of others", put("topk_weight", lambda w: w.flip(1))),
        ("wide ids", put("topk_ids", lambda ids: ids.long())),
        ("another activation", put("activation", lambda kind: type(kind).Gelu)),
        ("quantised", put("quant_type", lambda kind: type(kind).per_Token)),
        ("weighed before", constant("doweight_stage1", True)),
        ("plain rows", put("w1", torch.clone)),
        ("experts of others", put("topk_ids", lambda ids: (ids + 1) % 4)),
    ),
    *all_of(
        "fp8 experts", "fused_moe",
        ("no scales", drop("w1_scale", "w2_scale")),
        ("one scale forgotten", put("w2_scale", torch.ones_like)),
        ("scales swapped", swap("w1_scale", "w2_scale")),
        ("blocks", put("quant_type", lambda kind: type(kind).per_1x128)),
        ("scales of others", put("w1_scale", shifted)),
    ),
    *all_of(
        "fp8 experts of blocks", "fused_moe",
        ("scales of others", put("w1_scale", lambda s: s.flip(1))),
        ("scales by token", put("quant_type", lambda kind: type(kind).per_Token)),
    ),
]  # fmt: skip
MUTATIONS = (*_PER_TOKEN, *_QUANTISED, *_STORES, *_ATTENTION, *_LATENT, *_EXPERTS)
