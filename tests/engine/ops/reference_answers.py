"""Answers of a whole tiny model, computed by a backend where it can, held to the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from atom.model_ops.backends.backend import Backend
from tests.engine.ops.inputs import load_backend
from tests.support.engine_core.core_driver import CoreDriver

LENGTHS = (11, 30)  # of prompts: answers of the first pass the twelfth token


def assert_reference_answers(
    folder: Path, backend: Backend, device: torch.device, operations: Sequence[str]
) -> None:
    """Tokens are the reference's, and log-probabilities within 1e-4, with those of the operations
    that the backend has."""
    own = [op for op in operations if op in load_backend(backend.name).operations]
    where = "cpu" if device.type == "cpu" else "auto"
    tokens, logprobs = _answers(folder, device=where)
    found, close = _answers(folder, device=where, op_backends=dict.fromkeys(own, backend.name))
    assert found == tokens
    torch.testing.assert_close(close, logprobs, atol=1e-4, rtol=0)


def _answers(folder: Path, **options: object) -> tuple[list[list[int]], torch.Tensor]:
    """Greedy tokens, and the likeliest one's log-probability of each."""
    driver = CoreDriver(
        str(folder), backend="torch_ref", max_model_len=64, max_num_seqs=4,
        max_num_batched_tokens=24, num_kv_blocks=24, **options,
    )  # fmt: skip
    asked = [[(7 * row + token) % 200 + 3 for token in range(n)] for row, n in enumerate(LENGTHS)]
    tokens = driver.generate(asked, max_tokens=3, ignore_eos=True, logprobs=1)
    return tokens, torch.tensor([[each.logprob for each in row] for row in driver.logprobs])
