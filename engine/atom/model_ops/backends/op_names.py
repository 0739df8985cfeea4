"""Names of the operations: all of them, those composed of others, and those that belong together.

interface.py has the contract of each.
"""

from __future__ import annotations

from atom.sizing.states import DeltaShape, SsdShape, StateShape

# Of steps with drafts alone; contracts in draft_ops.py.
DRAFT_OPS = ("draft_ngrams", "lay_out_drafts", "prepare_drafted", "accept_drafts")

OPS = (
    "embedding",
    "prepare_linear",
    "prepare_experts",
    "linear",
    "rms_norm",
    "norm",
    "act_and_mul",
    "route",
    "experts",
    "qk_norm_rope_store",
    "paged_attention",
    "mla_rope_store",
    "mla_attention",
    "compressed_attention",
    "select_tokens",
    "sparse_mla_attention",
    "select_spans",
    "span_attention",
    "short_convolution",
    "gated_delta_rule",
    "state_space_dual",
    "add_lora",
    "expert_products",
    "sample",
    "sample_vocab_shard",
    "filter_logits",
    "apply_token_mask",
    "receive_step",
    "prepare_decode",
    "commit_tokens",
    "rotate_heads",
    *DRAFT_OPS,
)


# Operations that stand for several: composed of them (composed.py) unless one backend provides the
# whole and is the choice for all of its parts.
FUSED_OPS: dict[str, tuple[str, ...]] = {
    "linear_parts": ("linear", "norm"),
    "gated_linear": ("linear", "act_and_mul"),
    "add": ("linear", "norm"),
    "add_experts": ("experts", "norm"),
    "norm_experts": ("norm", "route", "linear", "act_and_mul", "experts"),
    "norm_linear": ("norm", "linear"),
    "norm_gated_linear": ("norm", "linear", "act_and_mul"),
    "linear_lora": ("linear", "add_lora"),
    "norm_linear_lora": ("norm", "linear", "add_lora", "act_and_mul"),
    "attention": ("qk_norm_rope_store", "paged_attention"),
    "gated_delta_net": ("short_convolution", "gated_delta_rule", "rms_norm"),
}


# Of these one reads what the other arranged: both are the same backend's if that has an order of
# its own (`Backend.arranges`).
PAIRED_OPS = (
    ("prepare_linear", "linear"),
    ("prepare_experts", "experts"),
    ("prepare_experts", "expert_products"),
    ("qk_norm_rope_store", "paged_attention"),
    ("qk_norm_rope_store", "span_attention"),
)


# Operations that only some models' steps compute; those of states by what has one.
HEADS_OPS = ("qk_norm_rope_store", "paged_attention")
MLA_OPS = ("mla_rope_store", "mla_attention")
COMPRESSED_OPS = ("compressed_attention",)
EXPERTS_OPS = ("prepare_experts", "route", "experts")
SPARSE_OPS = ("select_tokens", "sparse_mla_attention")
SPAN_OPS = ("select_spans", "span_attention")
STATE_OPS = {
    "short_convolution": StateShape,
    "gated_delta_rule": DeltaShape,
    "state_space_dual": SsdShape,
}
# Of ranks that draw without each other's logits.
SHARD_OPS = ("sample_vocab_shard",)
# Of encoders of images, which run before a step's layers and in no graph.
IMAGE_OPS = ("rotate_heads",)
LORA_OPS = ("add_lora", "expert_products")
ATTENTION_OPS = (
    "paged_attention",
    "mla_attention",
    *COMPRESSED_OPS,
    *SPARSE_OPS,
    *SPAN_OPS,
    *STATE_OPS,
)
