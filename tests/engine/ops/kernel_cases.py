"""Kernels and the constants of real shapes that they are compiled with, bfloat16 mostly.

What each case is, test_kernels_compile.py says; types: of pointers and numbers that have another
there than usual.
"""

from __future__ import annotations

from typing import Any

import pytest

from atom.model_ops.activations import Activation
from atom.model_ops.backends.triton_ops import (
    activation,
    allreduce_norm,
    norms,
    pages,
    quantise_activations,
)
from atom.model_ops.backends.triton_ops.attention import (
    decode,
    decode_append,
    indexer_scores,
    indexer_store,
    indexer_topk,
    long_chunks,
    mla_decode,
    mla_prefill,
    mla_store,
    prefill,
    rope_store,
    sparse_mla_decode,
    split_kv,
    verify_decode,
)
from atom.model_ops.backends.triton_ops.gemm import (
    lora_shrink_expand,
    norm_linear,
    norm_linear_lora,
    packed_bytes_gemm,
    quantised_tiles,
    skinny_linear,
    split_k_linear,
    w8a8_gemm,
)
from atom.model_ops.backends.triton_ops.linear_attention import (
    chunked_delta_rule,
    chunked_kimi_delta,
    gated_delta_net,
    gated_delta_rule,
    short_convolution,
    state_space_dual,
)
from atom.model_ops.backends.triton_ops.moe import norm_router, routing
from atom.model_ops.backends.triton_ops.sampling import (
    decode_state,
    ngram_drafts,
    sampling,
    token_bitmask,
    top_k_top_p_min_p,
)
from tests.engine.ops.expert_cases import CLAMPED, EXPERT_CASES, INT4, SILU
from tests.engine.ops.image_cases import IMAGE_CASES
from tests.engine.ops.moe_gemv_cases import MOE_GEMV, W8A16_GEMV
from tests.engine.ops.packed_int32_cases import PACKED_INT32

PAGES = {"types": {"pages_ptr": "*i64", "blocks_ptr": "*i64", "chunks_ptr": "*i64"}}
DRAFTS = {
    "types": {
        "tokens_ptr": "*i32",
        **dict.fromkeys(
            (
                "wanted_ptr",
                "drafts_ptr",
                "ahead_ptr",
                "counts_ptr",
                "drawn_ptr",
                "drafted_ptr",
                "offsets_ptr",
                "first_ptr",
                "token_slots_ptr",
                "row_ptr",
                "offset_ptr",
            ),
            "*i64",
        ),
        "run_starts_ptr": "*i32",
    }
}
HEADS = {"HKV": 8, "D": 128}
PADDED_HEADS = {"HKV": 8, "D": 80}
BF16 = {"k_scale_ptr": None, "v_scale_ptr": None}
FP8_TYPES = {
    "types": {
        "k_cache_ptr": "fp8",
        "v_cache_ptr": "fp8",
        "k_scale_ptr": "*fp32",
        "v_scale_ptr": "*fp32",
    }
}
NO_LIMIT, LIMIT = {"LIMIT": 0.0}, {"LIMIT": 240.0}
PLAIN = {"WINDOW": 0, "IN_CHUNKS": False, "SOFTCAP": 0.0, "sinks_ptr": None}
WINDOWED = {"WINDOW": 4096, "IN_CHUNKS": False, "SOFTCAP": 50.0}
IN_CHUNKS = {**PLAIN, "WINDOW": 8192, "IN_CHUNKS": True}
PREFILL = {"BLOCK_M": 128, "BLOCK_N": 64, "last_seen_ptr": None}
UNSCALED = {"SCALED": False, "TALL": 1, "WIDE": 0, "scale_ptr": None}
SCALED_BLOCKS = {"SCALED": True, "TALL": 128, "WIDE": 128}
IN_PLACE = {"order_ptr": None, "index_ptr": None}
CHOICE = {
    "PARTS": 4, "GROUPS": 1, "SIZE": 128, "GROUPS_PADDED": 1, "SIZE_PADDED": 128, "GROUPS_KEPT": 1,
    "GROUP_TOP": 1, "TOP_K": 8, "TOP_K_PADDED": 8, "SIGMOID": False, "RENORMALIZE": True,
    "SCALE": 1.0, "bias_ptr": None, "score_bias_ptr": None,
}  # fmt: skip
GROUPED_CHOICE = {
    "PARTS": 1, "GROUPS": 8, "SIZE": 32, "GROUPS_PADDED": 8, "SIZE_PADDED": 32, "GROUPS_KEPT": 4,
    "GROUP_TOP": 2, "TOP_K": 8, "TOP_K_PADDED": 8, "SIGMOID": True, "RENORMALIZE": True,
    "SCALE": 2.5,
}  # fmt: skip
LOGITS = {"types": {"logits_ptr": "*fp32"}}
GROUP = {"GROUP": 4, "BLOCK_SIZE": 16}
RUN = {**HEADS, **GROUP, **PLAIN, "BLOCK_N": 64, **BF16}
RUN_TYPES = {"types": {"counts_ptr": "*i32", "run_starts_ptr": "*i32"}}
MERGED = {"types": {"part_lse_ptr": "*fp32"}}
RANKS = {"RANK": 1, "RANKS": 2, "ROWS": 256}
LATENT = {
    "HEAD": 192, "RANK": 512, "ROPE": 64, "BLOCK_SIZE": 16,
    "BLOCK_N": 32, "key_cache_ptr": None, "entry_scale_ptr": None,
}  # fmt: skip
FP8_LATENT = {
    key: value for key, value in LATENT.items() if key not in ("key_cache_ptr", "entry_scale_ptr")
} | {"BLOCK_N": 16}
ENTRIES = {"types": {"cache_ptr": "fp8", "entry_scale_ptr": "*fp32", "key_scale_ptr": "*fp32"}}
INDEX = {"HQ": 64, "DIM": 128}
SCORES = {**INDEX, "TOP_K": 2048, "BLOCK_SIZE": 16, "BLOCK_N": 64}
SLOTS = {"types": {"selected_ptr": "*i64", "scores_ptr": "*fp32"}}
STATES = {
    "types": dict.fromkeys(
        ("states_ptr", "tails_ptr", "a_log_ptr", "dt_bias_ptr", "skip_ptr"), "*fp32"
    ),
    "even": ("x_stride", "gate_stride", "qkv_stride", "z_stride", "step_stride", "a_stride"),
}
CHUNKS = {**STATES, "types": {**STATES["types"], "decays_ptr": "*fp32", "left_ptr": "*fp32"}}
DELTA_RULE = {"HK": 16, "HV": 32, "DK": 128, "DV": 128}
SSD = {"HK": 8, "HV": 128, "DK": 128, "DV": 80, "K_LANES": 128, "LINEAR_FROM": 20.0}
SHRINK = {"IN": 4096, "SHRUNK": 48, "BLOCK_R": 64}
EXPAND = {
    "ROWS": (4096, 1024, 1024), "RANK": 16, "LANES": 16, "BLOCK_N": 128, "SPARSE": False,
}  # fmt: skip
LORA = {
    "num_warps": 4,
    "types": {"slots_ptr": "*i32", "order_ptr": "*i64"},
    "even": ("x_stride", "y_stride"),
}
NUMBERS = {"slot_ptr": "*i32", "shrunk_ptr": "*i32"}
KIMI_DELTA = {"HK": 32, "HV": 32, "DK": 128, "DV": 128, "K_LANES": 128}
ODD_DELTA_RULE = {"HK": 3, "HV": 9, "DK": 96, "DV": 80}
SELECTED = {key: value for key, value in LATENT.items() if key != "BLOCK_SIZE"} | {
    "TOP_K": 2048, "SLOTS": 2048, "BLOCK_N": 16,
}  # fmt: skip
ODD_LATENT = {**LATENT, "HEAD": 100, "RANK": 320, "ROPE": 36}

CASES: list[Any] = [
    pytest.param(kernel, constants, options, id=name)
    for name, kernel, constants, options in [
        ("rms_norm", norms._rms_norm_kernel,
         {"HIDDEN": 4096, "BLOCK": 4096, "HAS_RESIDUAL": True, "PARTS": 1, "IN_TREE": False}, {}),
        ("rms_norm of parts", norms._rms_norm_kernel,
         {"HIDDEN": 4096, "BLOCK": 4096, "HAS_RESIDUAL": True, "PARTS": 4, "IN_TREE": False}, {}),
        ("norm of a sum over 2 ranks", allreduce_norm._allreduce_norm_kernel,
         {"HIDDEN": 4096, "BLOCK": 4096, "PARTS": 1, "PAIRED": True, "WORDS": 2048} | RANKS, {}),
        ("norm of a sum of parts over 8 ranks", allreduce_norm._allreduce_norm_kernel,
         {"HIDDEN": 7168, "BLOCK": 8192, "PARTS": 4, "PAIRED": True, "WORDS": 3584} | RANKS
         | {"RANKS": 8}, {"num_warps": 16, "types": {"share_ptr": "*fp32"}}),
        ("silu", activation._act_and_mul_kernel,
         {"INNER": 12288, "BLOCK": 1024, **SILU}, {}),
        ("gelu", activation._act_and_mul_kernel,
         {"INNER": 12288, "BLOCK": 1024, **activation.gating(Activation.GELU_TANH)}, {}),
        ("clamped swiglu", activation._act_and_mul_kernel,
         {"INNER": 2880, "BLOCK": 1024, **CLAMPED}, {}),
        ("rope", rope_store._rope_store_kernel,
         {"HQ": 32, **HEADS, "HEADS": 4, "TOKENS": 2, "KEEP_KEYS": True, **BF16},
         {"num_warps": 1}),
        ("rope of odd heads", rope_store._rope_store_kernel,
         {"HQ": 32, **PADDED_HEADS, "HEADS": 4, "TOKENS": 2, "KEEP_KEYS": False, **BF16},
         {"num_warps": 1}),
        ("decode", decode._decode_kernel,
         {**HEADS, **GROUP, **PLAIN, "BLOCK_N": 64, "IS_SPLIT": True, **BF16}, {}),
        ("append", decode_append._decode_append_kernel,
         {**HEADS, **GROUP, **PLAIN, "BLOCK_N": 32, "IS_SPLIT": True, **BF16}, {}),
        ("append whole rows", decode_append._decode_append_kernel,
         {**HEADS, **GROUP, **PLAIN, "BLOCK_N": 32, "IS_SPLIT": False, **BF16}, {"num_warps": 1}),
        ("append odd heads in a window", decode_append._decode_append_kernel,
         {**PADDED_HEADS, **GROUP, **WINDOWED, "BLOCK_N": 32, "IS_SPLIT": True, **BF16}, {}),
        ("rope into fp8", rope_store._rope_store_kernel,
         {"HQ": 32, **HEADS, "HEADS": 4, "TOKENS": 2, "KEEP_KEYS": False},
         {"num_warps": 1, **FP8_TYPES}),
        ("append to fp8", decode_append._decode_append_kernel,
         {**HEADS, **GROUP, **PLAIN, "BLOCK_N": 32, "IS_SPLIT": True}, FP8_TYPES),
        ("decode of fp8", decode._decode_kernel,
         {**PADDED_HEADS, **GROUP, **WINDOWED, "BLOCK_N": 64, "IS_SPLIT": True}, FP8_TYPES),
        ("prefill of fp8", prefill._prefill_kernel,
         {**HEADS, **GROUP, **PLAIN, **PREFILL}, {"num_warps": 8, **FP8_TYPES}),
        ("combine", split_kv._combine_kernel,
         {"HQ": 32, "D": 128, "BLOCK_N": 64, "WINDOW": 4096,
          "IN_CHUNKS": False, "PADDED": 64}, {}),
        ("append in chunks", decode_append._decode_append_kernel,
         {**HEADS, **GROUP, **IN_CHUNKS, "BLOCK_N": 32, "IS_SPLIT": True, **BF16}, {}),
        ("combine chunks", split_kv._combine_kernel,
         {"HQ": 32, "D": 128, "BLOCK_N": 64, "WINDOW": 8192, "IN_CHUNKS": True,
          "PADDED": 64}, {}),
        ("verify in chunks", verify_decode._verify_kernel,
         {**RUN, **IN_CHUNKS, "GROUP": 5, "TILE": 32}, RUN_TYPES),
        ("prefill in chunks", prefill._prefill_kernel,
         {**HEADS, **GROUP, **IN_CHUNKS, **PREFILL, **BF16}, {"num_warps": 8}),
        ("verify of 4 rows", verify_decode._verify_kernel, {**RUN, "TILE": 16}, RUN_TYPES),
        ("verify of 6 rows", verify_decode._verify_kernel, {**RUN, "TILE": 32},
         {"num_warps": 2, **RUN_TYPES}),
        ("verify of 8 heads", verify_decode._verify_kernel, {**RUN, "GROUP": 8, "TILE": 64},
         RUN_TYPES),
        ("verify of odd heads in a window", verify_decode._verify_kernel,
         {**RUN, **PADDED_HEADS, **WINDOWED, "GROUP": 5, "TILE": 32},
         {"num_warps": 2, **RUN_TYPES}),
        ("verify of large heads", verify_decode._verify_kernel,
         {**RUN, "D": 256, "TILE": 32, "BLOCK_N": 32}, RUN_TYPES),
        ("verify of fp8", verify_decode._verify_kernel,
         {**HEADS, **GROUP, **PLAIN, "BLOCK_N": 64, "TILE": 32},
         {"types": RUN_TYPES["types"] | FP8_TYPES["types"]}),
        ("combine verified rows", verify_decode._combine_verify_kernel,
         {"HQ": 32, "D": 128, "PADDED": 64}, RUN_TYPES),
        ("prefill", prefill._prefill_kernel,
         {**HEADS, **GROUP, **PLAIN, **PREFILL, **BF16}, {"num_warps": 8}),
        ("prefill odd heads in a window", prefill._prefill_kernel,
         {**PADDED_HEADS, **GROUP, **WINDOWED, **PREFILL, **BF16}, {"num_warps": 8}),
        *IMAGE_CASES,
        ("gather a piece", long_chunks._gather_kernel,
         {"WIDTH": 1024, "LANES": 1024, "BLOCK_SIZE": 16, "TOKENS": 4}, {"num_warps": 8}),
        ("gather a piece of odd heads", long_chunks._gather_kernel,
         {"WIDTH": 640, "LANES": 1024, "BLOCK_SIZE": 48, "TOKENS": 4}, {"num_warps": 8}),
        ("merge a piece", long_chunks._merge_kernel,
         {"HQ": 32, "D": 128, "LANES": 128, "TOKENS": 32}, MERGED),
        ("merge a piece of odd heads", long_chunks._merge_kernel,
         {"HQ": 32, "D": 80, "LANES": 128, "TOKENS": 32}, MERGED),
        ("MLA store", mla_store._mla_store_kernel,
         {"HQ": 16, "NOPE": 128, "ROPE": 64, "RANK": 512, "HALF": 32, "RANK_LANES": 512,
          "HEADS": 8, "key_cache_ptr": None, "entry_scale_ptr": None, **NO_LIMIT},
         {"num_warps": 1}),
        ("MLA store into fp8", mla_store._mla_store_kernel,
         {"HQ": 16, "NOPE": 128, "ROPE": 64, "RANK": 512, "HALF": 32, "RANK_LANES": 512,
          "HEADS": 8, **LIMIT}, {"num_warps": 1, **ENTRIES}),
        ("MLA decode of fp8", mla_decode._mla_decode_kernel,
         {**FP8_LATENT, "HQ": 16, "HEADS": 16, "IS_SPLIT": True}, {"num_warps": 4, **ENTRIES}),
        ("MLA decode of fp8, many heads", mla_decode._mla_decode_kernel,
         {**FP8_LATENT, "HQ": 128, "HEADS": 64, "IS_SPLIT": True}, {"num_warps": 4, **ENTRIES}),
        ("MLA prefill of fp8", mla_prefill._mla_prefill_kernel,
         {**FP8_LATENT, "HQ": 16, "HEADS": 16, "TOKENS": 4}, {"num_warps": 4, **ENTRIES}),
        ("MLA decode", mla_decode._mla_decode_kernel,
         {**LATENT, "HQ": 16, "HEADS": 16, "IS_SPLIT": True}, {"num_warps": 4}),
        ("MLA decode of many heads", mla_decode._mla_decode_kernel,
         {**LATENT, "HQ": 128, "HEADS": 64, "IS_SPLIT": True}, {"num_warps": 8}),
        ("MLA decode whole rows, odd sizes", mla_decode._mla_decode_kernel,
         {**ODD_LATENT, "HQ": 12, "HEADS": 16, "IS_SPLIT": False}, {"num_warps": 4}),
        ("MLA combine", split_kv._combine_kernel,
         {"HQ": 16, "D": 512, "BLOCK_N": 32, "WINDOW": 0, "IN_CHUNKS": False,
          "PADDED": 64},
         {"num_warps": 8}),
        ("MLA prefill", mla_prefill._mla_prefill_kernel,
         {**LATENT, "HQ": 16, "HEADS": 16, "TOKENS": 4}, {"num_warps": 8}),
        ("MLA prefill of many heads, odd sizes", mla_prefill._mla_prefill_kernel,
         {**ODD_LATENT, "HQ": 100, "HEADS": 64, "TOKENS": 1}, {"num_warps": 8}),
        ("index store", indexer_store._index_store_kernel,
         {**INDEX, "ROPE": 64, "HALF": 32, "STILL": 64, "HEADS": 16, "key_scale_ptr": None,
          **NO_LIMIT}, {"num_warps": 1}),
        ("index store into fp8", indexer_store._index_store_kernel,
         {**INDEX, "ROPE": 64, "HALF": 32, "STILL": 64, "HEADS": 16, **LIMIT},
         {"num_warps": 1, **ENTRIES}),
        ("index scores of decodes", indexer_scores._index_scores_kernel,
         {**SCORES, "TOKENS": 1, "key_scale_ptr": None}, {"num_warps": 4, **SLOTS}),
        ("index scores of fp8", indexer_scores._index_scores_kernel,
         {**SCORES, "TOKENS": 8},
         {"num_warps": 4, "types": {"keys_ptr": "fp8", "scores_ptr": "*fp32", **ENTRIES["types"]}}),
        ("index scores of chunks", indexer_scores._index_scores_kernel,
         {**SCORES, "TOKENS": 8, "key_scale_ptr": None}, {"num_warps": 4, **SLOTS}),
        ("index selection of decodes", indexer_topk._index_select_kernel,
         {"TOP_K": 2048, "BLOCK_SIZE": 16, "CHUNK": 4096, "DECODES": True},
         {"num_warps": 8, **SLOTS}),
        ("index selection of chunks", indexer_topk._index_select_kernel,
         {"TOP_K": 2048, "BLOCK_SIZE": 16, "CHUNK": 4096, "DECODES": False},
         {"num_warps": 8, **SLOTS}),
        ("LoRA shrink of decodes", lora_shrink_expand._shrink_kernel,
         {**SHRINK, "BLOCK_T": 16, "BLOCK_K": 128, "PART_K": 256}, LORA),
        ("LoRA shrink of prompts", lora_shrink_expand._shrink_kernel,
         {**SHRINK, "BLOCK_T": 64, "BLOCK_K": 64, "PART_K": 4096}, LORA),
        ("LoRA expand of decodes", lora_shrink_expand._expand_kernel,
         {**EXPAND, "BLOCK_T": 16, "PARTS": 16}, LORA),
        ("LoRA expand of prompts", lora_shrink_expand._expand_kernel,
         {**EXPAND, "BLOCK_T": 64, "PARTS": 1}, LORA),
        ("LoRA expand of experts", lora_shrink_expand._expand_kernel,
         {**EXPAND, "ROWS": (768, 768), "BLOCK_T": 64, "PARTS": 1, "SPARSE": True}, LORA),
        ("LoRA expand of rank 256", lora_shrink_expand._expand_kernel,
         {**EXPAND, "RANK": 256, "LANES": 64, "BLOCK_T": 64, "PARTS": 1}, LORA),
        ("short convolution of decodes", short_convolution._convolve_kernel,
         {"CHANNELS": 8192, "WIDTH": 4, "TOKENS": 1, "BLOCK": 256, "SILU": True, "bias_ptr": None},
         {"num_warps": 4, **STATES}),
        ("short convolution of chunks", short_convolution._convolve_kernel,
         {"CHANNELS": 8192, "WIDTH": 4, "TOKENS": 8, "BLOCK": 256, "SILU": True, "bias_ptr": None},
         {"num_warps": 4, **STATES}),
        ("short convolution with a bias and without silu", short_convolution._convolve_kernel,
         {"CHANNELS": 2048, "WIDTH": 3, "TOKENS": 8, "BLOCK": 256, "SILU": False},
         {"num_warps": 4, **STATES}),
        ("tails of a short convolution", short_convolution._tails_kernel,
         {"CHANNELS": 8192, "WIDTH": 4, "LANES": 4, "BLOCK": 256, "kept_ptr": None},
         {"num_warps": 4, **STATES}),
        ("gated delta rule", gated_delta_rule._delta_rule_kernel,
         {**DELTA_RULE, "K_LANES": 128, "BLOCK_V": 32, "LINEAR_FROM": 20.0, "kept_ptr": None,
          "BY_CHANNEL": False},
         {"num_warps": 4, **STATES}),
        ("gated delta rule of drafts, odd heads", gated_delta_rule._delta_rule_kernel,
         {**ODD_DELTA_RULE, "K_LANES": 128, "BLOCK_V": 32, "LINEAR_FROM": 20.0,
          "BY_CHANNEL": False},
         {"num_warps": 4, **STATES}),
        ("Kimi's delta rule", gated_delta_rule._delta_rule_kernel,
         {**KIMI_DELTA, "BLOCK_V": 32, "LINEAR_FROM": 20.0, "kept_ptr": None, "BY_CHANNEL": True},
         {"num_warps": 4, **STATES}),
        ("systems of Kimi's delta rule", chunked_kimi_delta._channel_systems_kernel,
         {**KIMI_DELTA, "CHUNK": 64, "BLOCK_K": 64, "LEVELS": 6, "LINEAR_FROM": 20.0},
         {"num_warps": 4, **CHUNKS}),
        ("states of Kimi's delta rule", chunked_kimi_delta._channel_states_kernel,
         {**KIMI_DELTA, "CHUNK": 64, "BLOCK_V": 32},
         {"num_warps": 4, "num_stages": 1, **CHUNKS}),
        ("systems of a delta rule's chunks", chunked_delta_rule._chunk_systems_kernel,
         {**DELTA_RULE, "K_LANES": 128, "CHUNK": 64, "LINEAR_FROM": 20.0},
         {"num_warps": 4, **CHUNKS}),
        ("systems of a delta rule's chunks, odd heads", chunked_delta_rule._chunk_systems_kernel,
         {**ODD_DELTA_RULE, "K_LANES": 128, "CHUNK": 64, "LINEAR_FROM": 20.0},
         {"num_warps": 4, **CHUNKS}),
        ("states of a delta rule's chunks", chunked_delta_rule._chunk_states_kernel,
         {**DELTA_RULE, "K_LANES": 128, "CHUNK": 64, "BLOCK_V": 32}, {"num_warps": 4, **CHUNKS}),
        ("states of a delta rule's chunks, odd heads", chunked_delta_rule._chunk_states_kernel,
         {**ODD_DELTA_RULE, "K_LANES": 128, "CHUNK": 64, "BLOCK_V": 32},
         {"num_warps": 4, **CHUNKS}),
        ("delta net of decodes", gated_delta_net._delta_net_kernel,
         {**DELTA_RULE, "WIDTH": 4, "LINEAR_FROM": 20.0}, {"num_warps": 8, **CHUNKS}),
        ("delta net of decodes, odd heads", gated_delta_net._delta_net_kernel,
         {**ODD_DELTA_RULE, "DV": 48, "WIDTH": 3, "LINEAR_FROM": 20.0},
         {"num_warps": 8, **CHUNKS}),
        ("gated norm of a delta net", gated_delta_net._gated_norm_kernel,
         {"HV": 32, "DV": 128, "ROWS": 16}, {"num_warps": 4, **CHUNKS}),
        ("state space dual of decodes", state_space_dual._step_kernel,
         {**SSD, "BLOCK_V": 32, "kept_ptr": None}, {"num_warps": 4, **STATES}),
        ("state space dual of chunks", state_space_dual._chunks_kernel,
         {**SSD, "BLOCK_V": 32, "CHUNK": 64}, {"num_warps": 4, "num_stages": 1, **STATES}),
        ("sparse MLA", sparse_mla_decode._sparse_mla_kernel,
         {**SELECTED, "HQ": 16, "HEADS": 16, "IS_SPLIT": True}, {"num_warps": 4, **SLOTS}),
        ("sparse MLA, many heads", sparse_mla_decode._sparse_mla_kernel,
         {**SELECTED, "HQ": 128, "HEADS": 64, "IS_SPLIT": False}, {"num_warps": 4, **SLOTS}),
        ("sparse MLA of fp8", sparse_mla_decode._sparse_mla_kernel,
         {key: value for key, value in {
             **SELECTED, "HQ": 128, "HEADS": 64, "IS_SPLIT": True,
         }.items() if value is not None},
         {"num_warps": 4, "types": {"selected_ptr": "*i64", **ENTRIES["types"]}}),
        ("sparse MLA, odd sizes", sparse_mla_decode._sparse_mla_kernel,
         {**SELECTED, "HQ": 12, "HEAD": 100, "RANK": 320, "ROPE": 36, "HEADS": 16,
          "TOP_K": 600, "SLOTS": 1024, "IS_SPLIT": True}, {"num_warps": 4, **SLOTS}),
        ("gemv", skinny_linear._gemv_kernel,
         {"TOKENS": 2, "BLOCK_N": 4, "BLOCK_K": 512, "HAS_BIAS": False, "EVEN": True,
          **UNSCALED}, {}),
        ("dot", skinny_linear._dot_kernel,
         {"TOKENS": 16, "BLOCK_N": 16, "BLOCK_K": 64, "SPLIT_K": 4, "HAS_BIAS": True,
          "EVEN": True, **UNSCALED}, {}),
        ("dot of fp8", skinny_linear._dot_kernel,
         {"TOKENS": 16, "BLOCK_N": 16, "BLOCK_K": 128, "SPLIT_K": 4, "HAS_BIAS": True,
          "EVEN": True, **SCALED_BLOCKS},
         {"num_stages": 4, "types": {"w_ptr": "fp8", "scale_ptr": "*fp32"}}),
        ("split K", split_k_linear._split_k_kernel,
         {"BLOCK_T": 64, "BLOCK_N": 64, "BLOCK_K": 64, "WEIGHTS_FIRST": True, "GATED": False,
          "HAS_BIAS": True}, {}),
        ("gated", split_k_linear._split_k_kernel,
         {"BLOCK_T": 128, "BLOCK_N": 32, "BLOCK_K": 64, "WEIGHTS_FIRST": False, "GATED": True,
          "HAS_BIAS": True}, {}),
        ("quantise groups", quantise_activations._groups_kernel,
         {"GROUPS": 8, "GROUP": 128, "LIMIT": 240.0}, {"types": {"codes_ptr": "fp8"}}),
        ("quantise rows", quantise_activations._rows_kernel,
         {"BLOCK": 4096, "LIMIT": 127.0}, {"types": {"codes_ptr": "*i8"}}),
        ("fp8 blocks, few tokens", w8a8_gemm._fp8_kernel,
         {"BLOCK_T": 16, "BLOCK_N": 32, "BLOCK_K": 128, "TALL": 128, "WIDE": 128, "LIMIT": 240.0,
          "QUANTISES": True, "HAS_BIAS": False, "x_scale_ptr": None, "bias_ptr": None},
         {"num_stages": 3, "types": {"w_ptr": "fp8", "scale_ptr": "*fp32"}}),
        ("fp8 blocks, many tokens", w8a8_gemm._fp8_kernel,
         {"BLOCK_T": 128, "BLOCK_N": 128, "BLOCK_K": 128, "TALL": 128, "WIDE": 128, "LIMIT": 240.0,
          "QUANTISES": False, "HAS_BIAS": False, "bias_ptr": None},
         {"num_warps": 8, "types": {"x_ptr": "fp8", "w_ptr": "fp8", "scale_ptr": "*fp32"}}),
        ("fp8 rows", w8a8_gemm._fp8_kernel,
         {"BLOCK_T": 64, "BLOCK_N": 128, "BLOCK_K": 128, "TALL": 1, "WIDE": 0, "LIMIT": 240.0,
          "QUANTISES": False, "HAS_BIAS": True},
         {"types": {"x_ptr": "fp8", "w_ptr": "fp8", "scale_ptr": "*fp32"}}),
        ("int8", w8a8_gemm._int8_kernel,
         {"BLOCK_T": 128, "BLOCK_N": 128, "BLOCK_K": 128, "HAS_BIAS": True},
         {"num_warps": 8, "types": {"x_ptr": "*i8", "w_ptr": "*i8", "scale_ptr": "*fp32"}}),
        ("int4 in groups", packed_bytes_gemm._packed_bytes_kernel,
         {"BLOCK_T": 16, "BLOCK_N": 32, "BLOCK_K": 128, "GROUP": 128, "FP4": False,
          "HAS_BIAS": False, "bias_ptr": None, **IN_PLACE}, {"num_stages": 3, **INT4}),
        ("int4 in small groups", packed_bytes_gemm._packed_bytes_kernel,
         {"BLOCK_T": 64, "BLOCK_N": 128, "BLOCK_K": 128, "GROUP": 32, "FP4": False,
          "HAS_BIAS": True, "zero_ptr": None, **IN_PLACE}, INT4),
        ("int4 of groups parted among ranks", packed_bytes_gemm._packed_bytes_kernel,
         {"BLOCK_T": 32, "BLOCK_N": 64, "BLOCK_K": 128, "GROUP": 128, "FP4": False,
          "HAS_BIAS": False, "bias_ptr": None}, INT4),
        ("mxfp4", packed_bytes_gemm._packed_bytes_kernel,
         {"BLOCK_T": 64, "BLOCK_N": 128, "BLOCK_K": 128, "GROUP": 32, "FP4": True,
          "HAS_BIAS": False, "zero_ptr": None, "bias_ptr": None, **IN_PLACE},
         {"types": {"w_ptr": "*u8", "scale_ptr": "*u8"}}),
        *PACKED_INT32,
        ("sum of parts", quantised_tiles._sum_kernel, {"CHUNK": 1024}, {}),
        ("norm_linear", norm_linear._norm_linear_kernel,
         {"K": 4096, "BLOCK_K": 4096, "ROWS": 4, "GATED": False, "HAS_RESIDUAL": True,
          "HAS_BIAS": False, "bias_ptr": None, **UNSCALED}, {"num_warps": 8}),
        ("norm_linear of fp8", norm_linear._norm_linear_kernel,
         {"K": 4096, "BLOCK_K": 4096, "ROWS": 4, "GATED": False, "HAS_RESIDUAL": True,
          "HAS_BIAS": False, "bias_ptr": None, "SCALED": True, "TALL": 1, "WIDE": 0},
         {"num_warps": 8, "types": {"w_ptr": "fp8", "scale_ptr": "*fp32"}}),
        ("norm_gated_linear", norm_linear._norm_linear_kernel,
         {"K": 4096, "BLOCK_K": 4096, "ROWS": 1, "GATED": True, "HAS_RESIDUAL": True,
          "HAS_BIAS": True, **UNSCALED}, {}),
        ("w13 of what is normed", norm_linear._norm_linear_kernel,
         {"K": 4096, "BLOCK_K": 4096, "ROWS": 1, "GATED": True, "HAS_RESIDUAL": False,
          "HAS_BIAS": False, "bias_ptr": None, "norm_ptr": None, **UNSCALED}, {}),
        ("linear with an adapter", norm_linear_lora._linear_lora_kernel,
         {"K": 12288, "BLOCK_K": 4096, "ROWS": 2, "HAS_BIAS": False, "bias_ptr": None,
          "RANK": 16, "LANES": 16, "ENDS": (4096,)}, {"num_warps": 4, "types": NUMBERS}),
        ("norm_linear with an adapter", norm_linear_lora._norm_linear_lora_kernel,
         {"K": 4096, "BLOCK_K": 4096, "ROWS": 2, "GATED": False, "HAS_RESIDUAL": True,
          "HAS_BIAS": False, "bias_ptr": None, "RANK": 16, "LANES": 16,
          "ENDS": (4096, 5120, 6144)}, {"num_warps": 4, "types": NUMBERS}),
        ("norm_gated_linear with an adapter", norm_linear_lora._norm_linear_lora_kernel,
         {"K": 4096, "BLOCK_K": 4096, "ROWS": 1, "GATED": True, "HAS_RESIDUAL": True,
          "HAS_BIAS": True, "RANK": 16, "LANES": 16, "ENDS": (12288, 24576)},
         {"num_warps": 4, "types": NUMBERS}),
        *W8A16_GEMV,
        ("router", routing._logits_kernel, {"BLOCK_T": 16, "BLOCK_E": 16, "BLOCK_K": 128}, {}),
        ("choice", routing._choose_kernel, CHOICE, {"num_warps": 1}),
        ("choice in groups", routing._choose_kernel, GROUPED_CHOICE, {"num_warps": 1}),

        ("norm and logits", norm_router._norm_router_kernel,
         {"K": 2048, "BLOCK_K": 2048, "ROWS": 4, "HAS_RESIDUAL": True, "PARTS": 1, "PLANES": 1},
         {"num_warps": 8, **LOGITS}),
        ("norm and logits of parts in planes", norm_router._norm_router_kernel,
         {"K": 7168, "BLOCK_K": 8192, "ROWS": 2, "HAS_RESIDUAL": True, "PARTS": 4, "PLANES": 8},
         {"num_warps": 8, "types": {"logits_ptr": "*fp32", "x_ptr": "*fp32"}}),
        *EXPERT_CASES,
        *MOE_GEMV,
        ("score", sampling._score_kernel,
         {"VOCAB": 151936, "CHUNK": 4096, "CHUNKS": 38, "FIRST_GROUP": 0}, {"num_warps": 8}),
        ("pick", sampling._pick_kernel,
         {"VOCAB": 151936, "CHUNKS": 38, "BLOCK": 64, "FIRST_GROUP": 0, "score_ptr": None}, {}),
        ("pick of a chunk", sampling._pick_kernel,
         {"VOCAB": 75968, "CHUNKS": 75, "BLOCK": 128, "FIRST_GROUP": 1187}, {}),
        ("groups", top_k_top_p_min_p._groups_kernel, {"CHUNK": 2048}, {"num_warps": 1}),
        ("least", top_k_top_p_min_p._least_kernel,
         {"PADDED": 4096, "CHOSEN": 64, "BITS": 16, "PASS": 16384}, {"num_warps": 16}),
        ("mask", top_k_top_p_min_p._mask_kernel, {"CHUNK": 2048}, {}),
        ("receive", decode_state._receive_kernel,
         {"RING_ENTRIES": 3, "LINES": 4, "COLUMNS": 256, "BLOCK": 256, "AHEAD": False,
          "wanted_ptr": None}, {"num_warps": 1}),
        ("receive of drafts", decode_state._receive_kernel,
         {"RING_ENTRIES": 3, "LINES": 5, "COLUMNS": 256, "BLOCK": 256, "AHEAD": True},
         {"num_warps": 1, **DRAFTS}),
        ("prepare", decode_state._prepare_kernel,
         {"MAX_BLOCKS": 256, "GROUPS": 2, "BLOCK_SIZE": 16, "CHUNK": 256, "AHEAD": False,
          "offsets_ptr": None, "ahead_ptr": None}, {}),
        ("prepare_drafted", decode_state._prepare_kernel,
         {"MAX_BLOCKS": 256, "GROUPS": 2, "BLOCK_SIZE": 16, "CHUNK": 256, "AHEAD": True},
         DRAFTS),
        ("look up", ngram_drafts._look_up_kernel,
         {"MOST": 8, "CHUNK": 2048, "LANES": 8}, {"num_warps": 8, **DRAFTS}),
        ("layout", ngram_drafts._layout_kernel, {"LANES": 256, "CHUNK": 1024}, DRAFTS),
        ("accept", ngram_drafts._accept_kernel, {"LANES": 8, "ANSWERS": True},
         {"num_warps": 1, **DRAFTS}),
        ("pages read", pages.copy_pages_kernel, {"READ": True, "CHUNK": 1024}, PAGES),
        ("pages written", pages.copy_pages_kernel, {"READ": False, "CHUNK": 1024}, PAGES),
        ("token_mask", token_bitmask._token_mask_kernel, {"CHUNK": 4096}, {}),
        ("commit", decode_state._commit_kernel,
         {"BLOCK": 256, "ANSWERS": True, "KEPT": False, "tokens_ptr": None}, {}),
        ("commit and keep", decode_state._commit_kernel,
         {"BLOCK": 32, "ANSWERS": True, "KEPT": True}, {"num_warps": 1, **DRAFTS}),
    ]
]  # fmt: skip


# Kernels whose tiles an AMD card's dies share, as that card has them.
DEALT_CASES: list[Any] = [
    pytest.param(kernel, {**constants, "DIES": 8}, options, id=f"{case.id}, over 8 dies")
    for case in CASES
    for kernel, constants, options in [case.values]
    if case.id in (
        "prefill", "gated", "fp8 blocks, many tokens", "int8", "mxfp4",
        "int4, 64 tokens of packed int32", "experts in order",
    )
]  # fmt: skip
