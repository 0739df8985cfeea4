"""On two GPUs: ranks that share experts as if on a node each, over NCCL or RCCL, say what one says.

Each node sees one device of this machine. float32 throughout, so that a difference is a fault and
not rounding.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atom.config import EngineOptions, NodePlace, build_config
from tests.engine.integration.ranks.test_expert_parallel import checkpoint
from tests.support.engine_core.core_client import core_client
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.ranks.further_node import further_node
from tests.support.server.server_process import reserved_port

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch sees fewer than two GPUs"),
]
FLAGS = ["--data-parallel-size", "2", "--enable-dp-attention", "--enable-expert-parallel"]


def _sees(device: int) -> dict[str, str]:
    return dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), str(device))


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
def test_two_nodes_of_a_gpu_each_say_what_one_gpu_says(
    eager: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(checkpoint(tmp_path, "experts", head_dim=32))
    draw = np.random.default_rng(7)
    prompts = [draw.integers(3, 300, size=length).tolist() for length in (1, 16, 40, 100, 30)]
    options: dict[str, Any] = {
        "model": model, "device": "auto", "dtype": "float32", "enforce_eager": eager,
        "num_kv_blocks": 200, "max_num_seqs": 8, "max_num_batched_tokens": 256,
        "max_model_len": 256,
    }  # fmt: skip
    with reserved_port() as port:
        shared = EngineOptions.of(
            **options,
            data_parallel_size=2,
            enable_dp_attention=True,
            enable_expert_parallel=True,
            nnodes=2,
            master_port=port,
        )
        place = NodePlace(count=2, rank=1, port=port)
        for name, value in _sees(0).items():
            monkeypatch.setitem(os.environ, name, value)
        with (
            further_node(model, place, tmp_path / "log", *FLAGS, environment=_sees(1)) as node,
            core_client(build_config(shared)) as client,
        ):
            found = client.wait_finished(*client.add(*prompts, max_tokens=30))
            client.assert_well()
            client.manager.shutdown()
            assert node.wait_exit() == 0, node.log
    alone = CoreDriver(**options)
    assert found == alone.generate(prompts, max_tokens=30, ignore_eos=True)
