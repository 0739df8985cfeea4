"""A whole model with an indexer, DeepSeek-V3.2's, by a backend's latent and sparse attention."""

from __future__ import annotations

from pathlib import Path

import torch

from atom.model_ops.backends.interface import Backend
from tests.engine.ops.inputs import load_backend
from tests.support.core_driver import CoreDriver
from tests.support.tiny_model import make_tiny_checkpoint

ATTENTION = (
    "latent_rope_store",
    "paged_latent_attention",
    "select_tokens",
    "selected_latent_attention",
)
INDEXER = {"index_topk": 12, "index_n_heads": 4, "index_head_dim": 24}
LENGTHS = (11, 30)  # answers of the first reach top_k and pass it


def answers(folder: Path, **options: object) -> tuple[list[list[int]], torch.Tensor]:
    """Greedy tokens, and the likeliest one's log-probability of each."""
    driver = CoreDriver(
        str(folder), backend="torch_ref", max_model_len=64, max_num_seqs=4,
        max_num_batched_tokens=24, num_kv_blocks=24, **options,
    )  # fmt: skip
    asked = [[(7 * row + token) % 200 + 3 for token in range(n)] for row, n in enumerate(LENGTHS)]
    tokens = driver.generate(asked, max_tokens=3, ignore_eos=True, logprobs=1)
    return tokens, torch.tensor([[each.logprob for each in row] for row in driver.logprobs])


def test_tokens_and_logits_are_the_references(
    backend: Backend, device: torch.device, tmp_path: Path
) -> None:
    own = [op for op in ATTENTION if op in load_backend(backend.name).operations]
    folder = make_tiny_checkpoint(tmp_path, "deepseek32", layers=1, extra=INDEXER)
    where = "cpu" if device.type == "cpu" else "auto"
    tokens, logprobs = answers(folder, device=where)
    found, close = answers(folder, device=where, op_backends=dict.fromkeys(own, backend.name))
    assert found == tokens
    torch.testing.assert_close(close, logprobs, atol=1e-4, rtol=0)
