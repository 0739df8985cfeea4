"""A whole model of chunks, warm queries and experts of weighed inputs, Llama 4's, by a backend."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from atom.model_ops.backends.interface import Backend
from tests.engine.ops.inputs import load_backend
from tests.support.core_driver import CoreDriver
from tests.support.tiny_model import make_tiny_checkpoint

OPERATIONS = (
    "norm", "linear", "prepare_linear", "act_and_mul", "qk_norm_rope_store", "paged_attention",
    "route", "experts", "prepare_experts",
)  # fmt: skip
LLAMA4 = {
    "num_local_experts": 4, "attention_chunk_size": 12, "floor_scale": 8, "attn_scale": 0.3,
    "no_rope_layer_interval": 2,
}  # fmt: skip
LENGTHS = (11, 30)  # answers of the first pass the end of a chunk


def answers(folder: Path, **options: object) -> tuple[list[list[int]], torch.Tensor]:
    """Greedy tokens, and the likeliest one's log-probability of each."""
    driver = CoreDriver(
        str(folder), backend="torch_ref", max_model_len=64, max_num_seqs=4,
        max_num_batched_tokens=24, num_kv_blocks=24, **options,
    )  # fmt: skip
    asked = [[(7 * row + token) % 200 + 3 for token in range(n)] for row, n in enumerate(LENGTHS)]
    tokens = driver.generate(asked, max_tokens=3, ignore_eos=True, logprobs=1)
    return tokens, torch.tensor([[each.logprob for each in row] for row in driver.logprobs])


@pytest.mark.parametrize("mixture", [1, 2], ids=["all mixtures", "one dense layer"])
def test_tokens_and_logits_are_the_references(
    backend: Backend, device: torch.device, tmp_path: Path, mixture: int
) -> None:
    own = [op for op in OPERATIONS if op in load_backend(backend.name).operations]
    extra = {**LLAMA4, "interleave_moe_layer_step": mixture, "intermediate_size_mlp": 96}
    folder = make_tiny_checkpoint(tmp_path, "llama4", extra=extra)
    where = "cpu" if device.type == "cpu" else "auto"
    tokens, logprobs = answers(folder, device=where)
    found, close = answers(folder, device=where, op_backends=dict.fromkeys(own, backend.name))
    assert found == tokens
    torch.testing.assert_close(close, logprobs, atol=1e-4, rtol=0)
