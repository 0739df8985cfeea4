"""The CPU's backend: PyTorch as well, arranged for few calls, few copies and no padding.

The reference defines an operation's meaning; this backend computes the same with less dispatch and
fewer temporaries, on which a small model would spend most of a step. The reference provides the
operations that it lacks.
"""

from __future__ import annotations

from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.expert_choice import router
from atom.model_ops.backends.grouped_experts import grouped_experts
from atom.model_ops.backends.torch_cpu import (
    attention,
    delta_net,
    dense,
    logit_filters,
    mla,
    ngram_drafts,
    rope_store,
    short_convolution,
    state_space_dual,
)
from atom.model_ops.quantised.dequantise import multiply, prepare_for_cpu


def backend() -> Backend:
    return Backend(
        name="torch_cpu",
        operations={
            "prepare_linear": prepare_for_cpu,
            "prepare_experts": prepare_for_cpu,
            "rms_norm": dense.rms_norm,
            "norm": dense.norm,
            "act_and_mul": dense.act_and_mul,
            "route": router(multiply),
            "experts": grouped_experts(multiply, dense.act_and_mul),
            "qk_norm_rope_store": rope_store.qk_norm_rope_store,
            "paged_attention": attention.paged_attention,
            "mla_rope_store": mla.mla_rope_store,
            "mla_attention": mla.mla_attention,
            "short_convolution": short_convolution.short_convolution,
            "gated_delta_rule": delta_net.gated_delta_rule,
            "state_space_dual": state_space_dual.state_space_dual,
            "filter_logits": logit_filters.filter_logits,
            "draft_ngrams": ngram_drafts.draft_ngrams,
        },
        reasons_against=attention.reasons_against,
        expands=True,
    )
