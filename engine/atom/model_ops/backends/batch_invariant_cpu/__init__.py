"""The CPU's backend of reproducible answers: compiled kernels that compute each row independently.

Products, attention, norms and activations are native_cpu's, which sum each row front to back,
independently of the rest of a step. torch's library is faster for many rows, but chooses its order
by their number, so it is never used for them. Operations on single elements or integers are
torch's. The backend is built from parts of other backends, which do not know it.
"""

from __future__ import annotations

from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.batch_invariant_cpu import experts, linear, logit_filters, mla
from atom.model_ops.backends.draft_ops import draft_ops_of
from atom.model_ops.backends.native_cpu import attention, dense, sampling
from atom.model_ops.backends.native_cpu import reasons_against as reasons_against_native
from atom.model_ops.backends.native_cpu.library import why_not
from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.backends.torch_cpu import ngram_drafts
from atom.model_ops.backends.torch_ref import decode_state, drafting, token_mask
from atom.model_ops.backends.torch_ref.dense import embedding
from atom.model_ops.quantised.dequantise import prepare_for_cpu
from atom.model_ops.tree_sums import join_by_tree


def backend() -> Backend:
    reason = why_not()
    return Backend(
        name="batch_invariant_cpu",
        operations={
            "embedding": embedding,
            "prepare_linear": prepare_for_cpu,
            "prepare_experts": prepare_for_cpu,
            "linear": linear.linear,
            "rms_norm": dense.rms_norm,
            "norm": dense.norm,
            "act_and_mul": dense.act_and_mul,
            "route": experts.route,
            "experts": experts.experts,
            "qk_norm_rope_store": attention.qk_norm_rope_store,
            "paged_attention": attention.attend_query_by_query,
            "mla_rope_store": mla.mla_rope_store,
            "mla_attention": mla.mla_attention,
            "sample": sampling.sample,
            "filter_logits": logit_filters.filter_logits,
            "apply_token_mask": token_mask.apply_token_mask,
            "receive_step": decode_state.receive_step,
            "prepare_decode": decode_state.prepare_decode,
            "commit_tokens": decode_state.commit_tokens,
            **draft_ops_of(drafting),
            "draft_ngrams": ngram_drafts.draft_ngrams,
        },
        unusable=() if reason is None else (reason,),
        reasons_against=reasons_against,
        expands=True,
        join=join_by_tree(dense.norm),
    )


_CACHED = ("qk_norm_rope_store", "paged_attention", "mla_rope_store", "mla_attention")


def reasons_against(op: str, case: OpCase) -> tuple[str, ...]:
    """See `Backend`: native_cpu's, whose kernels these are, and other dtypes of the cache."""
    if op == "paged_attention" and any(shape.sees_ahead for shape in case.layers.attention):
        return ("its queries see no later token, and tokens of an image do",)
    found = reasons_against_native(op, case)
    if not found and op in _CACHED and case.kv_dtype is not case.dtype:
        return (f"a cache of {case.kv_dtype} beside {case.dtype}",)
    return found
