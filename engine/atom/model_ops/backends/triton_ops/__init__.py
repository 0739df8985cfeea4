"""The Triton backend: the engine's own GPU kernels, one source for CUDA and ROCm.

Every operation may be captured into a graph. Without Triton or without a GPU the backend reports
itself unusable. In Triton's interpreter (TRITON_INTERPRET=1) it runs on CPU tensors, so its logic
can be tested without a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from atom.model_ops.backends.backend import Backend, WarmupCompile
from atom.model_ops.backends.draft_ops import draft_ops_of
from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.quantised.cached_heads import FP8_DTYPES
from atom.model_ops.routing import Scoring
from atom.model_ops.values import WeightFormat
from atom.utils.device import native_fp8

# The setting that the kernels are tested with; Triton 3.9 warns that its default will change.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


_CACHED = (
    "qk_norm_rope_store",
    "paged_attention",
    "attention",
    "mla_rope_store",
    "mla_attention",
    "select_tokens",
    "sparse_mla_attention",
)
_PRODUCTS = (
    "prepare_linear",
    "linear",
    "linear_parts",
    "gated_linear",
    "add",
    "norm_linear",
    "norm_gated_linear",
    "linear_lora",
    "norm_linear_lora",
)


def _one_by_one() -> bool:
    """Return whether kernels are compiled as steps need them: a fallback for a card or driver that
    fails in a warm-up compile."""
    return os.environ.get("ATOM_COMPILE_AHEAD") == "0"


def backend() -> Backend:
    reasons = unusable()
    if reasons:
        return Backend(name="triton", operations={}, unusable=reasons)
    # Imported here: the kernels' modules need Triton.
    from atom.model_ops.backends.triton_ops import activation, allreduce_group, norms, rotate_heads
    from atom.model_ops.backends.triton_ops.attention import (
        gqa,
        mla,
        mla_store,
        rope_store,
        sparse_mla,
    )
    from atom.model_ops.backends.triton_ops.compile import compiler_process
    from atom.model_ops.backends.triton_ops.gemm import (
        linear,
        lora_shrink_expand,
        norm_linear_lora,
    )
    from atom.model_ops.backends.triton_ops.linear_attention import (
        gated_delta_net,
        gated_delta_rule,
        short_convolution,
        state_space_dual,
    )
    from atom.model_ops.backends.triton_ops.moe import (
        expert_products,
        grouped_gemm,
        norm_experts,
        routing,
    )
    from atom.model_ops.backends.triton_ops.sampling import (
        decode_state,
        ngram_drafts,
        sampling,
        token_bitmask,
        top_k_top_p_min_p,
    )

    if torch.cuda.is_available():
        compiler_process.prepare_triton()
    operations: dict[str, Callable[..., Any]] = {
        "embedding": linear.embedding,
        "linear": linear.linear,
        "prepare_linear": linear.prepare_linear,
        "prepare_experts": grouped_gemm.prepare_experts,
        "linear_parts": linear.linear_parts,
        "gated_linear": linear.gated_linear,
        "add": linear.add,
        "norm_linear": linear.norm_linear,
        "norm_gated_linear": linear.norm_gated_linear,
        "rms_norm": norms.rms_norm,
        "norm": norms.norm,
        "act_and_mul": activation.act_and_mul,
        "rotate_heads": rotate_heads.rotate_heads,
        "route": routing.route,
        "experts": grouped_gemm.experts,
        "add_experts": grouped_gemm.add_experts,
        "norm_experts": norm_experts.norm_experts,
        "qk_norm_rope_store": rope_store.qk_norm_rope_store,
        "paged_attention": gqa.paged_attention,
        "attention": gqa.attention,
        "mla_rope_store": mla_store.mla_rope_store,
        "mla_attention": mla.mla_attention,
        "select_tokens": sparse_mla.select_tokens,
        "sparse_mla_attention": sparse_mla.sparse_mla_attention,
        "short_convolution": short_convolution.short_convolution,
        "gated_delta_rule": gated_delta_rule.gated_delta_rule,
        "state_space_dual": state_space_dual.state_space_dual,
        "gated_delta_net": gated_delta_net.gated_delta_net,
        "add_lora": lora_shrink_expand.add_lora,
        "linear_lora": norm_linear_lora.linear_lora,
        "norm_linear_lora": norm_linear_lora.norm_linear_lora,
        "expert_products": expert_products.expert_products,
        "sample": sampling.sample,
        "sample_vocab_shard": sampling.sample_vocab_shard,
        "filter_logits": top_k_top_p_min_p.filter_logits,
        "apply_token_mask": token_bitmask.apply_token_mask,
        "receive_step": decode_state.receive_step,
        "prepare_decode": decode_state.prepare_decode,
        "commit_tokens": decode_state.commit_tokens,
        **draft_ops_of(ngram_drafts),
    }
    return Backend(
        name="triton",
        operations=operations,
        capturable=operations.keys() if torch.cuda.is_available() else (),
        # Scores of an indexer are computed in pieces as wide as the longest context.
        prompts=("paged_attention", "mla_attention"),
        reasons_against=reasons_against,
        join=allreduce_group.join,
        warmup_compile=warmup_compile(),
    )


def warmup_compile() -> WarmupCompile | None:
    """Return the way to compile kernels ahead; None if they are compiled as steps need them."""
    from atom.model_ops.backends.triton_ops.compile import warmup

    if _one_by_one():
        return None
    return WarmupCompile(warmup.warmup_compile, warmup.is_compiled_ahead)


def reasons_against(op: str, case: OpCase) -> tuple[str, ...]:
    from atom.model_ops.backends.triton_ops.attention import gqa, mla, sparse_mla

    if op in _PRODUCTS:
        return _against_fp8(case.formats)
    if op == "route":
        others = {each.scoring for each in case.experts.routings} - {
            Scoring.SOFTMAX,
            Scoring.SIGMOID,
        }
        return tuple(f"its router has no {scoring.value}" for scoring in others)
    if op == "expert_products" and WeightFormat.MXFP4 in case.experts.formats:
        return ("its MXFP4 stacks are in the order of both products at once",)
    if op in ("prepare_experts", "experts", "add_experts", "norm_experts", "expert_products"):
        return _against_fp8(case.experts.formats)
    if op in _CACHED and case.kv_dtype in FP8_DTYPES and native_fp8(_device()) is None:
        return ("this card converts no fp8, which the KV cache is to have",)
    attentions = (gqa, mla, sparse_mla)
    return tuple(reason for kind in attentions for reason in kind.reasons_against(op, case))


def _against_fp8(formats: tuple[WeightFormat, ...]) -> tuple[str, ...]:
    if native_fp8(_device()) is not None:
        return ()
    return tuple(
        f"this card multiplies no fp8, which matrices of {kind.value} need"
        for kind in formats
        if kind in (WeightFormat.FP8, WeightFormat.FP8_BLOCKS)
    )


def _device() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def unusable() -> tuple[str, ...]:
    """Return the reasons why Triton's kernels cannot run here."""
    if find_spec("triton") is None:
        return ("triton is not installed (pip install 'atom-platform[cuda]' or '[rocm]')",)
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        return ("torch sees no GPU",)
    return ()
