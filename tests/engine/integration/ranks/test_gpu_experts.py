"""On several GPUs: ranks that share experts over NCCL or RCCL, in graphs, say what one GPU says.

float32 throughout, so that a difference is a fault and not rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.integration.ranks.test_expert_parallel import WITH_EXPERTS
from tests.engine.integration.ranks.test_gpu_ranks import on_devices
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.ranks.expert_group import Arrival, ExpertGroup
from tests.support.ranks.group_shapes import wide_checkpoint

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=[on_devices(2), on_devices(4), on_devices(8)])
def group(request: pytest.FixtureRequest) -> Iterator[ExpertGroup]:
    ranks = ExpertGroup(request.param, "auto")
    yield ranks
    ranks.close()


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("family", WITH_EXPERTS)
def test_gpus_say_what_one_does(
    family: str, eager: bool, group: ExpertGroup, tmp_path: Path
) -> None:
    """Other ranks join some steps late, with prompts beside the first's decodes, and outlast
    it: graphs beside eager steps, and of a rank without rows."""
    model = wide_checkpoint(tmp_path, family, head_dim=32)
    draw = np.random.default_rng(7)
    asked = [
        [draw.integers(3, 300, size=length).tolist() for length in lengths]
        for lengths in [(1, 16, 40, 100), *[(30, 60)] * (group.size - 1)]
    ]
    options: dict[str, Any] = {
        "dtype": "float32", "enforce_eager": eager, "num_kv_blocks": 200,
        "max_num_seqs": 8, "max_num_batched_tokens": 256, "max_model_len": 256,
    }  # fmt: skip
    arrivals = [
        [Arrival(prompt, 30 if rank else 12, turn=4 * rank) for prompt in prompts]
        for rank, prompts in enumerate(asked)
    ]
    found = group.run(model, arrivals, **options)
    alone = CoreDriver(model, device="auto", **options)
    for rank, prompts in enumerate(asked):
        expected = alone.generate(prompts, max_tokens=30 if rank else 12, ignore_eos=True)
        assert found[rank].tokens == expected
