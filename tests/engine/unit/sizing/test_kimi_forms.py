"""Kimi-K2.5's config.json, as published and as transformers writes it."""

from __future__ import annotations

from typing import Any

import pytest

from atom.sizing import ModelFacts
from atom.sizing.errors import ModelFactsError
from atom.sizing.vision.kimi_k25 import KimiVisionFacts

TEXT: dict[str, Any] = {
    "model_type": "kimi_k2",
    "vocab_size": 163_840,
    "hidden_size": 7168,
    "intermediate_size": 18_432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 64,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "num_nextn_predict_layers": 0,
    "max_position_embeddings": 262_144,
}
PUBLISHED: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "media_placeholder_token_id": 163_605,
    "tie_word_embeddings": False,
    "text_config": TEXT,
    "vision_config": {
        "vt_hidden_size": 1152,
        "vt_intermediate_size": 4304,
        "vt_num_attention_heads": 16,
        "vt_num_hidden_layers": 27,
        "init_pos_emb_height": 64,
        "init_pos_emb_width": 64,
        "init_pos_emb_time": 4,
        "pos_emb_type": "divided_fixed",
        "merge_type": "sd2_tpool",
        "merge_kernel_size": [2, 2],
        "mm_hidden_size": 1152,
        "mm_projector_type": "patchmerger",
        "projector_hidden_act": "gelu",
        "projector_ln_eps": 1e-05,
        "patch_size": 14,
        "video_attn_type": "spatial_temporal",
    },
}
WRITTEN: dict[str, Any] = {
    "architectures": ["Kimi_K25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "image_token_id": 163_605,
    "tie_word_embeddings": False,
    "projection_hidden_size": 1152,
    "projection_layer_norm_eps": 1e-05,
    "text_config": {**TEXT, "model_type": "deepseek_v3"},
    "vision_config": {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "pos_emb_height": 64,
        "pos_emb_width": 64,
        "merge_kernel_size": [2, 2],
        "patch_size": 14,
    },
}
# Of transformers' Kimi_K25VisionModel and its projector, with an output of 7168.
PARAMETERS = 416_866_032 + 54_277_888


def test_both_forms_are_one_model() -> None:
    published, written = (ModelFacts.from_hf_config(each) for each in (PUBLISHED, WRITTEN))
    assert published.vision == written.vision
    assert isinstance(published.vision, KimiVisionFacts)
    assert published.vision.parameters == PARAMETERS
    assert published.layers == written.layers
    assert published.checkpoint.wrapper == "KimiK25ForConditionalGeneration"
    assert published.architecture == "DeepseekV3ForCausalLM"


def test_absent_fields_have_the_defaults_of_the_classes() -> None:
    bare = {**WRITTEN, "vision_config": {"patch_size": 14}}
    del bare["image_token_id"], bare["projection_hidden_size"], bare["projection_layer_norm_eps"]
    assert ModelFacts.from_hf_config(bare).vision == ModelFacts.from_hf_config(WRITTEN).vision


@pytest.mark.parametrize(
    "changes",
    [
        {"pos_emb_type": "interpolated"},
        {"merge_type": "none"},
        {"mm_projector_type": "linear"},
        {"projector_hidden_act": "silu"},
        {"mm_hidden_size": 1024},
        {"merge_kernel_size": [2, 3]},
    ],
    ids=str,
)
def test_another_kind_of_encoder_is_refused_by_its_field(changes: dict[str, Any]) -> None:
    vision = {**PUBLISHED["vision_config"], **changes}
    with pytest.raises(ModelFactsError) as refused:
        ModelFacts.from_hf_config({**PUBLISHED, "vision_config": vision})
    (key,) = changes
    field = "projection_hidden_size" if key == "mm_hidden_size" else key
    assert refused.value.field == field
    assert repr(changes[key]) in str(refused.value)
