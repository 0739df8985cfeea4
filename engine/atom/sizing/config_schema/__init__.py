"""Type and range of every config.json value that sizes or computes a part of the model.

A checkpoint's author is not always the person who serves it. So a value of another type, a value
that is not finite or outside the range of all published models, and a size at which reading alone
would not end, are each a ModelFactsError that names the key, before other code reads the value.
null means that the key is absent, with two exceptions. For switches, windows, bounds of logits, the
scale of values and queries' low rank, null turns the feature off. The readers of groups of experts
refuse null. Pure; text_part.py calls it on every config.json that the engine or the operator reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from atom.sizing.config_schema.value_kinds import (
    Either,
    Flag,
    Kind,
    ListOf,
    Number,
    Object,
    Text,
    Whole,
)
from atom.sizing.errors import ModelFactsError

Config = Mapping[str, object]

_MOST_LAYERS = 4096
_MOST_WIDTH = 1 << 22  # elements of a hidden state, rows of a matrix
_MOST_EXPERTS = 1 << 16
_MOST_TOKENS = 1 << 31  # ids and positions are int32
_MOST_THETA = 1e15
_KEEPS_NULL = (
    "sliding_window",
    "attention_chunk_size",
    "n_group",
    "topk_group",
    "attention_value_scale",
    "q_lora_rank",
    "final_logit_softcapping",
    "attn_logit_softcapping",
)
_NEVER_NULL = ("attention_multiplier",)  # attention would take null for a scale
_TIES = ("tie_word_embeddings", "tie_embedding")  # null is as if they were absent


_WIDTH, _HEADS = Whole(1, _MOST_WIDTH), Whole(1, 1 << 16)
_TOKENS, _LAYERS = Whole(1, _MOST_TOKENS), Whole(0, _MOST_LAYERS)
_TOKENS_OR_NONE = Whole(0, _MOST_TOKENS)
_EXPERTS = Whole(1, _MOST_EXPERTS)
_IDS = ListOf(Whole(-_MOST_TOKENS, _MOST_TOKENS), most=1024, alone=True)  # -1: none
_NAMES = ListOf(Text())
_LARGE = Number(0.0, 1e9)
_THETA = Number(0.0, _MOST_THETA)

FIELDS: dict[str, Kind] = {
    "architectures": ListOf(Text(), most=16),
    "model_type": Text(),
    "text_config": Object(),
    "quantization_config": Object(),
    "hidden_act": Text(),
    "hidden_activation": Text(),
    "layer_types": _NAMES,
    "mlp_layer_types": _NAMES,
    "layers_block_type": _NAMES,
    "hybrid_override_pattern": Text(),
    "position_embedding_type": Text(),
    "classifier_pooling": Text(),
    "classifier_activation": Text(),
    "id2label": Object(),
    "mlp_hidden_act": Text(),
    "mamba_hidden_act": Text(),
    "indexer_types": _NAMES,
    "index_topk_pattern": Either(Text(), _NAMES),
    "index_topk_freq": _LAYERS,
    "sparse_attention_config": Object(),
    "index_block_size": _WIDTH,
    "index_topk_blocks": _WIDTH,
    "index_local_blocks": _LAYERS,
    "index_skip_topk_offset": _LAYERS,
    # sizes
    "hidden_size": _WIDTH,
    "target_hidden_size": _WIDTH,
    "intermediate_size": _WIDTH,
    "intermediate_size_mlp": _WIDTH,
    "dense_intermediate_size": _WIDTH,
    "moe_intermediate_size": ListOf(_WIDTH, alone=True),
    "shared_expert_intermediate_size": _WIDTH,
    "vocab_size": Whole(1, 1 << 24),
    "draft_vocab_size": Whole(1, 1 << 24),
    "num_hidden_layers": Whole(1, _MOST_LAYERS),
    "num_nextn_predict_layers": Whole(0, 64),
    "mtp_num_hidden_layers": Whole(0, 64),
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "head_dim": _HEADS,
    "global_head_dim": _HEADS,
    "num_global_key_value_heads": _HEADS,
    "hidden_size_per_layer_input": Whole(0, _MOST_WIDTH),
    "num_kv_shared_layers": _LAYERS,
    "per_layer_config": Object(),
    "attention_k_eq_v": Flag(),
    "use_bidirectional_attention": Either(Flag(), Text()),
    "enable_moe_block": Flag(),
    "use_double_wide_mlp": Flag(),
    "top_k_experts": _EXPERTS,
    "vocab_size_per_layer_input": Whole(1, 1 << 24),
    "q_lora_rank": _WIDTH,
    "kv_lora_rank": _WIDTH,
    "qk_nope_head_dim": _HEADS,
    "qk_rope_head_dim": _HEADS,
    "v_head_dim": _HEADS,
    "swa_num_key_value_heads": _HEADS,
    "linear_num_key_heads": _HEADS,
    "linear_num_value_heads": _HEADS,
    "linear_key_head_dim": _HEADS,
    "linear_value_head_dim": _HEADS,
    "linear_conv_kernel_dim": Whole(2, 64),
    "full_attn_idxs": ListOf(_LAYERS),
    "conv_L_cache": Whole(2, 64),
    "block_ff_dim": _WIDTH,
    "block_multiple_of": _WIDTH,
    "block_ffn_dim_multiplier": Number(0.0, 1e3),
    "block_auto_adjust_ff_dim": Flag(),
    "linear_num_heads": _HEADS,
    "linear_head_dim": _HEADS,
    "linear_attn_config": Object(),
    "model_max_length": _TOKENS,
    "mamba_n_heads": _HEADS,
    "mamba_num_heads": _HEADS,
    "mamba_n_groups": _HEADS,
    "n_groups": _HEADS,
    "mamba_d_head": Either(_HEADS, Text()),
    "mamba_head_dim": _HEADS,
    "mamba_d_state": _HEADS,
    "ssm_state_size": _HEADS,
    "mamba_d_conv": Whole(2, 64),
    "conv_kernel": Whole(2, 64),
    "mamba_expand": Number(0.0, 1e3),
    "shared_intermediate_size": _WIDTH,
    "moe_shared_expert_intermediate_size": _WIDTH,
    "moe_latent_size": _WIDTH,
    "index_n_heads": _HEADS,
    "index_head_dim": _HEADS,
    "index_topk": _TOKENS,
    "o_groups": _HEADS,
    "o_lora_rank": _WIDTH,
    "hc_mult": Whole(1, 64),
    "hc_sinkhorn_iters": Whole(1, 1000),
    "hc_eps": Number(0.0, 1.0),
    "compress_ratios": ListOf(_TOKENS_OR_NONE),
    "compress_rates": Object(),
    "compress_rate_csa": _TOKENS,
    "compress_rate_hca": _TOKENS,
    "compress_rope_theta": _THETA,
    "num_hash_layers": _LAYERS,
    "max_position_embeddings": _TOKENS,
    "type_vocab_size": Whole(1, 1 << 16),
    "num_labels": Whole(1, 1 << 16),
    "local_attention": _TOKENS,
    "global_attn_every_n_layers": Whole(1, _MOST_LAYERS),
    "original_max_position_embeddings": _TOKENS,
    "sliding_window": Whole(0, _MOST_TOKENS),  # 0: of models that have none
    "sliding_window_pattern": Either(Whole(0, _MOST_LAYERS), Text()),
    "sliding_window_size": _TOKENS,
    "hybrid_layer_pattern": ListOf(Whole(0, 1)),
    "attention_chunk_size": _TOKENS,
    # which layers are what
    "max_window_layers": _LAYERS,
    "first_k_dense_replace": _LAYERS,
    "moe_layer_freq": Either(Whole(1, _MOST_LAYERS), ListOf(Whole(0, 1))),
    "decoder_sparse_step": _LAYERS,
    "full_attention_interval": Whole(1, _MOST_LAYERS),
    "mlp_only_layers": ListOf(_LAYERS),
    "moe_layers": ListOf(_LAYERS),
    "no_rope_layers": ListOf(Whole(0, 1)),
    "no_rope_layer_interval": Whole(1, _MOST_LAYERS),
    "moe_layer_start_index": _LAYERS,
    "moe_layer_end_index": Whole(-1, _MOST_LAYERS),
    "moe_layer_interval": Whole(1, _MOST_LAYERS),
    "interleave_moe_layer_step": Whole(1, _MOST_LAYERS),
    "eagle_aux_hidden_state_layer_ids": ListOf(_LAYERS),
    "eagle_config": Object(),
    # experts and how they are chosen
    "num_experts": _EXPERTS,
    "num_local_experts": Whole(0, _MOST_EXPERTS),
    "n_routed_experts": _EXPERTS,
    "num_experts_per_tok": _EXPERTS,
    "n_shared_experts": Whole(0, _MOST_EXPERTS),
    "moe_num_experts": _EXPERTS,
    "moe_k": _EXPERTS,
    "num_dense_layers": _LAYERS,
    "num_experts_per_token": _EXPERTS,
    "num_shared_experts": Whole(0, _MOST_EXPERTS),
    "num_expert_group": _EXPERTS,
    "moe_renormalize": Flag(),
    "moe_router_activation_func": Text(),
    "use_expert_bias": Flag(),
    "moe_topk": ListOf(_EXPERTS, alone=True),
    "moe_num_shared_experts": Whole(0, _MOST_EXPERTS),
    "n_group": _EXPERTS,
    "topk_group": _EXPERTS,
    "topk_method": Text(),
    "scoring_func": Text(),
    "expert_dtype": Text(),
    "routed_scaling_factor": Number(0.0, 1e6),
    "norm_topk_prob": Flag(),
    # the parameters of the computation
    "rms_norm_eps": Number(0.0, 1.0),
    "layernorm_epsilon": Number(0.0, 1.0),
    "norm_eps": Number(0.0, 1.0),
    "layer_norm_epsilon": Number(0.0, 1.0),
    "layer_norm_eps": Number(0.0, 1.0),
    "global_rope_theta": _THETA,
    "local_rope_theta": _THETA,
    "rope_theta": _THETA,
    "swa_rope_theta": _THETA,
    "rope_local_base_freq": _THETA,
    "partial_rotary_factor": Number(0.0, 1.0),
    "rotary_dim": Whole(1, _MOST_WIDTH),
    "embedding_multiplier": _LARGE,
    "attention_multiplier": _LARGE,
    "residual_multiplier": _LARGE,
    "logits_scaling": _LARGE,
    "query_pre_attn_scalar": _LARGE,
    "final_logit_softcapping": _LARGE,
    "attn_logit_softcapping": _LARGE,
    "attention_value_scale": _LARGE,
    "swiglu_alpha": _LARGE,
    "swiglu_limit": _LARGE,
    "floor_scale": _LARGE,
    "attn_scale": Number(0.0, 1e9, inclusive=True),
    "attn_temperature_tuning": Either(Flag(), Number(0.0, 1e9, inclusive=True)),
    "attention_bias": Flag(),
    "mlp_bias": Flag(),
    "attention_out_bias": Flag(),
    "use_bias": Flag(),
    "norm_bias": Flag(),
    "classifier_bias": Flag(),
    "is_decoder": Flag(),
    "qkv_bias": Flag(),
    "use_qk_norm": Flag(),
    "use_sliding_window": Flag(),
    "conv_bias": Flag(),
    "use_conv_bias": Flag(),
    "mamba_conv_bias": Flag(),
    "mamba_proj_bias": Flag(),
    "tie_word_embeddings": Flag(),
    "tie_embedding": Flag(),
    "rope_interleave": Flag(),
    # end and beginning
    "eos_token_id": _IDS,
    "bos_token_id": _IDS,
    "pad_token_id": Whole(-_MOST_TOKENS, _MOST_TOKENS),  # -1: none
}
ROPE_FIELDS: dict[str, Kind] = {
    "rope_type": Text(),
    "type": Text(),
    "rope_theta": _THETA,
    "partial_rotary_factor": Number(0.0, 1.0),
    "factor": Number(0.0, 1e6),
    "alpha": Number(0.0, 1e6),
    "original_max_position_embeddings": _TOKENS,
    "low_freq_factor": Number(0.0, 1e6),
    "high_freq_factor": Number(0.0, 1e6),
    "beta_fast": _LARGE,
    "beta_slow": _LARGE,
    "mscale": Number(0.0, 1e3, inclusive=True),
    "mscale_all_dim": Number(0.0, 1e3, inclusive=True),
    "attention_factor": Number(0.0, 1e3),
    "truncate": Flag(),
    "short_factor": ListOf(_LARGE, most=1 << 16),
    "long_factor": ListOf(_LARGE, most=1 << 16),
}
_ROPES = ("rope_parameters", "rope_scaling")


def checked(config: Config) -> dict[str, object]:
    """Return the configuration without null values. Raises ModelFactsError for a value that no
    model has."""
    for key in _NEVER_NULL:
        if key in config and config[key] is None:
            raise _wrong(key, None, FIELDS[key].accepted)
    said = dict(_without_nulls(config, FIELDS))
    _check(said, FIELDS, "")
    for key in _ROPES:
        ropes = said.get(key)
        if ropes is None:
            continue
        if not isinstance(ropes, Mapping):
            raise _wrong(key, ropes, "an object")
        said[key] = _checked_ropes(ropes, key)
    return said


def _without_nulls(config: Config, fields: Mapping[str, Kind]) -> Iterator[tuple[str, object]]:
    """Yield the keys that have a value; a null switch counts as off, as in Python."""
    for key, value in config.items():
        if value is not None or key in _KEEPS_NULL:
            yield key, value
        elif isinstance(fields.get(key), Flag) and key not in _TIES:
            yield key, False


def _checked_ropes(ropes: Config, place: str) -> dict[str, object]:
    """Check the parameters of one rope, or of an object of several by kind."""
    found = dict(_without_nulls(ropes, ROPE_FIELDS))
    _check(found, ROPE_FIELDS, f"{place}.")
    low, high = found.get("low_freq_factor"), found.get("high_freq_factor")
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low > high:
        accepted = f"a number of at least low_freq_factor, which is {low!r}"
        raise _wrong(f"{place}.high_freq_factor", high, accepted)
    for key, value in found.items():
        if isinstance(value, Mapping):
            found[key] = _checked_ropes(value, f"{place}.{key}")
    return found


def _check(said: Config, fields: Mapping[str, Kind], place: str) -> None:
    for key, value in said.items():
        kind = fields.get(key)
        if kind is not None and value is not None and not kind.takes(value):
            raise _wrong(f"{place}{key}", value, kind.accepted)


def _wrong(key: str, value: object, accepted: str) -> ModelFactsError:
    shown = "null" if value is None else repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}…"
    return ModelFactsError(
        f"config.json: {key} is {shown}; it must be {accepted}: correct it, or use the config.json "
        "that came with the weights",
        field=key.partition(".")[0],
    )
