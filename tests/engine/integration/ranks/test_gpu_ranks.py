"""On several GPUs: ranks over NCCL or RCCL, in graphs, say what one GPU says.

float32 throughout, so that a difference is a fault and not rounding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.integration.ranks.test_tensor_parallel import FAMILIES
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.tiny_model import make_tiny_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch sees fewer than two GPUs"),
]

NAMES = ("dense", "experts", "norms behind attention and MLP", "latent attention with experts")


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("family", NAMES)
def test_two_gpus_draw_what_one_does(family: str, eager: bool, tmp_path: Path) -> None:
    settings = dict(FAMILIES[family])
    extra = {"vocab_size": 384, **settings.pop("extra", {})}
    model = str(make_tiny_checkpoint(tmp_path, **settings, head_dim=32, extra=extra))
    draw = np.random.default_rng(7)
    prompts = [draw.integers(3, 300, size=length).tolist() for length in (1, 16, 40, 100)]
    options: dict[str, Any] = {
        "device": "auto", "dtype": "float32", "enforce_eager": eager, "num_kv_blocks": 200,
        "max_num_seqs": 8, "max_num_batched_tokens": 256, "max_model_len": 256,
    }  # fmt: skip
    drawing = {"temperature": 1.0, "seed": 3, "max_tokens": 12, "ignore_eos": True}
    filtered = {**drawing, "top_k": 20, "top_p": 0.9}
    asked: list[dict[str, Any]] = [{"max_tokens": 12, "ignore_eos": True}, drawing, filtered]
    together = CoreDriver(model, tensor_parallel_size=2, **options)
    found = [together.generate(prompts, **ask) for ask in asked]
    together.close()
    alone = CoreDriver(model, **options)
    assert found == [alone.generate(prompts, **ask) for ask in asked]
