"""A whole model with an indexer, DeepSeek-V3.2's, by a backend's latent and sparse attention."""

from __future__ import annotations

from pathlib import Path

import torch

from atom.model_ops.backends.backend import Backend
from tests.engine.ops.reference_answers import assert_reference_answers
from tests.support.models.tiny_model import make_tiny_checkpoint

ATTENTION = (
    "mla_rope_store",
    "mla_attention",
    "select_tokens",
    "sparse_mla_attention",
)
INDEXER = {"index_topk": 12, "index_n_heads": 4, "index_head_dim": 24}


def test_tokens_and_logits_are_the_references(
    backend: Backend, device: torch.device, tmp_path: Path
) -> None:
    folder = make_tiny_checkpoint(tmp_path, "deepseek32", layers=1, extra=INDEXER)
    assert_reference_answers(folder, backend, device, ATTENTION)
