"""The backend of reproducible answers: a row's numbers do not depend on the rest of a step.

The order of a product, sum or softmax depends neither on the number of rows, tokens or ranks, nor
on the cuts of a prompt; no sum uses atomics. An operation without such an implementation is refused
at start, since the vendor's libraries choose their order by size. Operations on one element, or on
one row by one warp count, are the Triton backend's.
"""

from __future__ import annotations

from functools import partial

import torch

from atom.model_ops.backends import triton_ops
from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.draft_ops import draft_ops_of
from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.tree_sums import join_by_tree
from atom.model_ops.values import WeightFormat


def backend() -> Backend:
    reasons = triton_ops.unusable()
    if reasons:
        return Backend(name="batch_invariant", operations={}, unusable=reasons)
    # Imported here: the kernels' modules need Triton.
    from atom.model_ops.backends.batch_invariant import attention, experts, linear, mla, norms
    from atom.model_ops.backends.triton_ops import activation
    from atom.model_ops.backends.triton_ops.attention import mla_store, rope_store
    from atom.model_ops.backends.triton_ops.compile import compiler_process
    from atom.model_ops.backends.triton_ops.gemm.linear import embedding
    from atom.model_ops.backends.triton_ops.sampling import (
        decode_state,
        ngram_drafts,
        sampling,
        token_bitmask,
        top_k_top_p_min_p,
    )

    if torch.cuda.is_available():
        compiler_process.prepare_triton()
    operations = {
        "embedding": embedding,
        "prepare_linear": linear.prepare_linear,
        "prepare_experts": linear.prepare_experts,
        "linear": linear.linear,
        "linear_parts": linear.linear_parts,
        "add": linear.add,
        "rms_norm": norms.rms_norm,
        "norm": norms.norm,
        "act_and_mul": activation.act_and_mul,
        "route": experts.route,
        "experts": experts.experts,
        "qk_norm_rope_store": rope_store.qk_norm_rope_store,
        "paged_attention": attention.paged_attention,
        "mla_rope_store": mla_store.mla_rope_store,
        "mla_attention": mla.mla_attention,
        "sample": partial(sampling.sample, in_one_order=True),
        "filter_logits": top_k_top_p_min_p.filter_logits,
        "apply_token_mask": token_bitmask.apply_token_mask,
        "receive_step": decode_state.receive_step,
        "prepare_decode": decode_state.prepare_decode,
        "commit_tokens": decode_state.commit_tokens,
        **draft_ops_of(ngram_drafts),
    }
    return Backend(
        name="batch_invariant",
        operations=operations,
        capturable=operations.keys() if torch.cuda.is_available() else (),
        prompts=("paged_attention", "mla_attention"),
        reasons_against=reasons_against,
        join=join_by_tree(norms.norm),
        warmup_compile=triton_ops.warmup_compile(),
    )


def reasons_against(op: str, case: OpCase) -> tuple[str, ...]:
    """See `Backend`."""
    from atom.model_ops.backends.batch_invariant import attention

    formats = {"linear": case.formats, "experts": case.experts.formats}.get(op, ())
    others = sorted({kind.value for kind in formats} - {WeightFormat.PLAIN.value})
    if others:
        return (f"multiplies no matrices of {' and '.join(others)}: give it a plain checkpoint",)
    return triton_ops.reasons_against(op, case) or attention.reasons_against(op, case)
