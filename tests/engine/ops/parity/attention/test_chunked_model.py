"""A whole model of chunks, warm queries and experts of weighed inputs, Llama 4's, by a backend."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from tests.engine.ops.reference_answers import assert_reference_answers
from tests.support.models.tiny_model import make_tiny_checkpoint

OPERATIONS = (
    "norm", "linear", "prepare_linear", "act_and_mul", "qk_norm_rope_store", "paged_attention",
    "route", "experts", "prepare_experts",
)  # fmt: skip
LLAMA4 = {
    "num_local_experts": 4, "attention_chunk_size": 12, "floor_scale": 8, "attn_scale": 0.3,
    "no_rope_layer_interval": 2,
}  # fmt: skip


@pytest.mark.parametrize("mixture", [1, 2], ids=["all mixtures", "one dense layer"])
def test_tokens_and_logits_are_the_references(
    backend: Backend, device: torch.device, tmp_path: Path, mixture: int
) -> None:
    extra = {**LLAMA4, "interleave_moe_layer_step": mixture, "intermediate_size_mlp": 96}
    folder = make_tiny_checkpoint(tmp_path, "llama4", extra=extra)
    assert_reference_answers(folder, backend, device, OPERATIONS)
