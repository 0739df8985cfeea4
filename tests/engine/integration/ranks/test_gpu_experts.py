"""On several GPUs: ranks that share experts over NCCL or RCCL, in graphs, say what one GPU says.

float32 throughout, so that a difference is a fault and not rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.integration.ranks.test_expert_parallel import WITH_EXPERTS, checkpoint
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.ranks.expert_group import Arrival, ExpertGroup

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch sees fewer than two GPUs"),
]


@pytest.fixture(scope="module")
def pair() -> Iterator[ExpertGroup]:
    ranks = ExpertGroup(2, "auto")
    yield ranks
    ranks.close()


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("family", WITH_EXPERTS)
def test_two_gpus_say_what_one_does(
    family: str, eager: bool, pair: ExpertGroup, tmp_path: Path
) -> None:
    """The second rank joins a step late, with prompts beside the first's decodes, and outlasts
    it: graphs beside eager steps, and of a rank without rows."""
    model = checkpoint(tmp_path, family, head_dim=32)
    draw = np.random.default_rng(7)
    first, second = (
        [draw.integers(3, 300, size=length).tolist() for length in lengths]
        for lengths in ((1, 16, 40, 100), (30, 60))
    )
    options: dict[str, Any] = {
        "dtype": "float32", "enforce_eager": eager, "num_kv_blocks": 200,
        "max_num_seqs": 8, "max_num_batched_tokens": 256, "max_model_len": 256,
    }  # fmt: skip
    arrivals = [
        [Arrival(prompt, 12) for prompt in first],
        [Arrival(prompt, 30, turn=4) for prompt in second],
    ]
    found = pair.run(model, arrivals, **options)
    alone = CoreDriver(model, device="auto", **options)
    assert found[0].tokens == alone.generate(first, max_tokens=12, ignore_eos=True)
    assert found[1].tokens == alone.generate(second, max_tokens=30, ignore_eos=True)
