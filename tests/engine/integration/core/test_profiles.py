"""Traces of a running engine, asked for over HTTP."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from atom.config import Config, EngineOptions, build_config
from atom.model_engine.runner.profiler import LIMIT_SECONDS, TorchProfiler
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.http_app import HttpRig, serve_model

RIGHT = {"authorization": "Bearer key"}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "qwen3")
    traces = tmp_path_factory.mktemp("work") / "traces"
    options = {"served_model_name": "tiny", "device": "cpu", "num_kv_blocks": 100}
    return build_config(
        EngineOptions.of(model=str(folder), torch_profiler_dir=str(traces), **options)  # type: ignore[arg-type]
    )


@pytest.fixture
async def rig(config: Config) -> AsyncIterator[HttpRig]:
    async with serve_model(config, api_key="key") as rig:
        rig.client.headers.update(RIGHT)
        yield rig
        await rig.assert_well()


async def test_a_trace_holds_what_ran_between_start_and_stop(rig: HttpRig) -> None:
    assert (await rig.post("/start_profile")).status_code == 200
    assert (await rig.post("/v1/completions", prompt="hello", max_tokens=4)).status_code == 200
    stopped = await rig.post("/stop_profile")
    assert stopped.status_code == 200
    (path,) = stopped.json()["traces"]
    assert Path(path).parent.name == "rank_0"
    with gzip.open(path, "rt") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    products = ("mm", "atom_linear")  # torch's, and those of the compiled kernels
    assert any(part in str(name) for name in names for part in products)


async def test_a_trace_is_begun_once_and_ended_once(rig: HttpRig) -> None:
    early = await rig.post("/stop_profile")
    assert early.status_code == 409
    assert "no trace has begun" in early.json()["error"]["message"]
    assert (await rig.post("/start_profile")).status_code == 200
    twice = await rig.post("/start_profile")
    assert twice.status_code == 409
    assert "begun already" in twice.json()["error"]["message"]
    assert (await rig.post("/stop_profile")).status_code == 200


async def test_a_folder_that_cannot_be_made_is_told(config: Config, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    profiler = TorchProfiler(str(blocked), rank=0)
    with pytest.raises(OSError, match="file"):
        profiler.start()


def test_a_forgotten_trace_ends_by_itself(tmp_path: Path) -> None:
    now = 0.0
    profiler = TorchProfiler(str(tmp_path), rank=3, clock=lambda: now)
    profiler.start()
    profiler.stop_if_forgotten()
    assert list(tmp_path.rglob("*.gz")) == []
    now = LIMIT_SECONDS
    profiler.stop_if_forgotten()
    assert len(list(tmp_path.rglob("rank_3/*.gz"))) == 1
    with pytest.raises(RuntimeError, match="no trace has begun"):
        profiler.stop()
