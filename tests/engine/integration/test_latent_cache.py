"""The cache of models with latent attention is what was planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atom.model_engine.model_runner import ModelRunner
from tests.engine.integration.test_model_parity import CHECKPOINTS
from tests.support.core_driver import CoreDriver
from tests.support.tiny_model import make_tiny_checkpoint


@pytest.fixture(params=[name for name in CHECKPOINTS if name.startswith("deepseek")])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return make_tiny_checkpoint(tmp_path, **CHECKPOINTS[request.param])


def test_cache_takes_the_bytes_that_were_planned(checkpoint: Path) -> None:
    driver = CoreDriver(str(checkpoint), num_kv_blocks=40, max_model_len=64, block_size=16)
    runner = driver_runner(driver)
    tensors = {
        layer._cache.entries.data_ptr(): layer._cache.entries
        for layer in runner._model.attention_layers()
    }
    held = sum(entries.nbytes for entries in tensors.values())
    assert held == driver.report.kv_cache_bytes > 0


def driver_runner(driver: Any) -> ModelRunner:
    runner = driver.executor.runner
    assert isinstance(runner, ModelRunner)
    return runner
