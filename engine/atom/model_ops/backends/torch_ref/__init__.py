"""The reference backend: every operation in plain PyTorch, on any device.

Written to be read and to be right; it is the oracle of every parity test. No operation is captured
into a graph.
"""

from __future__ import annotations

from atom.model_ops.backends.interface import Backend
from atom.model_ops.backends.logit_filters import filter_logits
from atom.model_ops.backends.torch_ref import (
    attention,
    decode_state,
    dense,
    drafting,
    experts,
    latent_attention,
    routing,
    sampling,
    sparse_attention,
    token_mask,
)


def backend() -> Backend:
    return Backend(
        name="torch_ref",
        operations={
            "embedding": dense.embedding,
            "prepare_linear": dense.prepare_linear,
            "prepare_experts": dense.prepare_linear,
            "linear": dense.linear,
            "rms_norm": dense.rms_norm,
            "norm": dense.norm,
            "act_and_mul": dense.act_and_mul,
            "route": routing.route,
            "experts": experts.experts,
            "qk_norm_rope_store": attention.qk_norm_rope_store,
            "paged_attention": attention.paged_attention,
            "latent_rope_store": latent_attention.latent_rope_store,
            "paged_latent_attention": latent_attention.paged_latent_attention,
            "select_tokens": sparse_attention.select_tokens,
            "selected_latent_attention": sparse_attention.selected_latent_attention,
            "sample": sampling.sample,
            "sample_stretch": sampling.sample_stretch,
            "filter_logits": filter_logits,
            "apply_token_mask": token_mask.apply_token_mask,
            "receive_step": decode_state.receive_step,
            "prepare_decode": decode_state.prepare_decode,
            "commit_tokens": decode_state.commit_tokens,
            "draft_ngrams": drafting.draft_ngrams,
            "lay_out_drafts": drafting.lay_out_drafts,
            "prepare_drafted": drafting.prepare_drafted,
            "accept_drafts": drafting.accept_drafts,
        },
    )
