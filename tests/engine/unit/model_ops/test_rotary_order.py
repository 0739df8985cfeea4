"""Ropes of a part of a head, and of neighbouring elements, in the one form that kernels know."""

from __future__ import annotations

import pytest
import torch
import transformers

from atom.model_ops.backends.torch_ref.attention import apply_rope
from atom.model_ops.rotary_embedding import RopeLimits, cos_sin_table, head_order, rope_config

TOKENS, HEADS, DIM = 9, 3, 32


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
def test_products_of_queries_and_keys_are_transformers(share: float, interleaved: bool) -> None:
    from transformers.models.glm.modeling_glm import GlmRotaryEmbedding
    from transformers.models.glm.modeling_glm import apply_rotary_pos_emb as rotate_neighbours
    from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding
    from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb as rotate_halves

    settings = {
        "hidden_size": HEADS * DIM,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": DIM,
        "pad_token_id": 0,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": share,
        },
    }  # fmt: skip
    q, k = torch.randn(2, 1, HEADS, TOKENS, DIM)
    positions = torch.arange(TOKENS)[None] * 7
    if interleaved:
        tables = GlmRotaryEmbedding(transformers.GlmConfig(**settings))(q, positions)
        expected_q, expected_k = rotate_neighbours(q, k, *tables)
    else:
        tables = Phi3RotaryEmbedding(transformers.Phi3Config(**settings))(q, positions)
        expected_q, expected_k = rotate_halves(q, k, *tables)
    expected = expected_q @ expected_k.transpose(-1, -2)

    limits = RopeLimits(max_position=512, original=None, longest=512)
    rope = rope_config(settings["rope_parameters"], DIM, limits, interleaved=interleaved)
    order = head_order(rope)
    assert (order is None) == (share == 1.0 and not interleaved)
    cos, sin = cos_sin_table(rope, 100)[positions[0]].chunk(2, dim=-1)
    ours = []
    for x in (q, k):
        by_token = x[0].transpose(0, 1)
        ordered = by_token if order is None else by_token[:, :, order]
        ours.append(apply_rope(ordered, cos, sin).transpose(0, 1))
    torch.testing.assert_close(ours[0] @ ours[1].transpose(-1, -2), expected[0])
