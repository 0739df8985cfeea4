"""The reference backend: every operation in plain PyTorch, on any device.

Written to be read and to be right; it is the oracle of every parity test. No operation is captured
into a graph.
"""

from __future__ import annotations

from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.draft_ops import draft_ops_of
from atom.model_ops.backends.logit_filters import filter_logits
from atom.model_ops.backends.torch_ref import (
    attention,
    compressed_attention,
    decode_state,
    delta_net,
    dense,
    drafting,
    experts,
    lora,
    mla,
    routing,
    sampling,
    short_convolution,
    span_attention,
    sparse_mla,
    state_space_dual,
    token_mask,
)
from atom.model_ops.quantised.dequantise import multiply


def backend() -> Backend:
    return Backend(
        name="torch_ref",
        operations={
            "embedding": dense.embedding,
            "prepare_linear": dense.prepare_linear,
            "prepare_experts": dense.prepare_linear,
            "linear": multiply,
            "rms_norm": dense.rms_norm,
            "norm": dense.norm,
            "act_and_mul": dense.act_and_mul,
            "rotate_heads": dense.rotate_heads,
            "route": routing.route,
            "experts": experts.experts,
            "qk_norm_rope_store": attention.qk_norm_rope_store,
            "paged_attention": attention.paged_attention,
            "mla_rope_store": mla.mla_rope_store,
            "mla_attention": mla.mla_attention,
            "compressed_attention": compressed_attention.compressed_attention,
            "select_tokens": sparse_mla.select_tokens,
            "sparse_mla_attention": sparse_mla.sparse_mla_attention,
            "select_spans": span_attention.select_spans,
            "span_attention": span_attention.span_attention,
            "short_convolution": short_convolution.short_convolution,
            "gated_delta_rule": delta_net.gated_delta_rule,
            "state_space_dual": state_space_dual.state_space_dual,
            "add_lora": lora.add_lora,
            "expert_products": experts.expert_products,
            "sample": sampling.sample,
            "sample_vocab_shard": sampling.sample_vocab_shard,
            "filter_logits": filter_logits,
            "apply_token_mask": token_mask.apply_token_mask,
            "receive_step": decode_state.receive_step,
            "prepare_decode": decode_state.prepare_decode,
            "commit_tokens": decode_state.commit_tokens,
            **draft_ops_of(drafting),
        },
    )
