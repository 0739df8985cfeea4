"""On several GPUs: ranks over NCCL or RCCL, in graphs, say what one GPU says.

float32 throughout, so that a difference is a fault and not rounding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.engine_core.core_driver import CoreDriver
from tests.support.ranks.group_shapes import wide_checkpoint

pytestmark = pytest.mark.gpu

NAMES = ("dense", "experts", "norms behind attention and MLP", "latent attention with experts")


def on_devices(number: int) -> Any:
    """The parameter `number`, for a machine with so many GPUs."""
    few = torch.cuda.device_count() < number
    reason = f"torch sees fewer than {number} GPUs"
    return pytest.param(number, marks=pytest.mark.skipif(few, reason=reason))


# The checkpoint has four KV heads: divided over two and four ranks, on two ranks each of eight.
@pytest.mark.parametrize("ranks", [on_devices(2), on_devices(4), on_devices(8)])
@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("family", NAMES)
def test_gpus_draw_what_one_does(family: str, eager: bool, ranks: int, tmp_path: Path) -> None:
    model = wide_checkpoint(tmp_path, family, head_dim=32)
    draw = np.random.default_rng(7)
    prompts = [draw.integers(3, 300, size=length).tolist() for length in (1, 16, 40, 100)]
    options: dict[str, Any] = {
        "device": "auto", "dtype": "float32", "enforce_eager": eager, "num_kv_blocks": 200,
        "max_num_seqs": 8, "max_num_batched_tokens": 256, "max_model_len": 256,
    }  # fmt: skip
    drawing = {"temperature": 1.0, "seed": 3, "max_tokens": 12, "ignore_eos": True}
    filtered = {**drawing, "top_k": 20, "top_p": 0.9}
    asked: list[dict[str, Any]] = [{"max_tokens": 12, "ignore_eos": True}, drawing, filtered]
    together = CoreDriver(model, tensor_parallel_size=ranks, **options)
    found = [together.generate(prompts, **ask) for ask in asked]
    together.close()
    alone = CoreDriver(model, **options)
    assert found == [alone.generate(prompts, **ask) for ask in asked]
