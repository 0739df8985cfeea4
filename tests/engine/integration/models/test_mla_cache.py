"""The cache of models with latent attention, and with entries, is what was planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.integration.models.test_model_parity import CHECKPOINTS
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.engine_core.held_cache import counted_cache
from tests.support.models.tiny_model import make_tiny_checkpoint


@pytest.fixture(params=[name for name in CHECKPOINTS if name.startswith("deepseek")])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return make_tiny_checkpoint(tmp_path, **CHECKPOINTS[request.param])


def test_cache_takes_the_bytes_that_were_planned(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = counted_cache(monkeypatch)
    driver = CoreDriver(str(checkpoint), num_kv_blocks=40, max_model_len=64, block_size=16)
    assert sum(held.values()) == driver.report.kv_cache_bytes > 0
