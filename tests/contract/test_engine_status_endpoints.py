"""The operator's client reads what the engine's own HTTP server says."""

from __future__ import annotations

from pathlib import Path

from atom_operator.cluster.engine_http import HttpEngines
from atom_operator.domain import DraftCounts, EngineHealth, EngineLoad
from tests.support.engine_core.front_half import (
    build_test_config,
    engine_report,
    write_model_folder,
)
from tests.support.server.http_app import serve_app
from tests.support.waiting import eventually


async def test_phase_while_starting_and_capacity_when_started(tmp_path: Path) -> None:
    config = build_test_config(write_model_folder(tmp_path, context_tokens=64))
    async with serve_app(config, ready_on_start=False) as rig:
        engines = HttpEngines(port=rig.port)
        starting = await engines.health("127.0.0.1")
        assert starting is not None
        assert (starting.state, bool(starting.reason)) == ("starting", True)
        assert starting.progress is not None
        assert starting.progress.phase == "opening the model"
        assert await engines.capacity("127.0.0.1") is None
        rig.core.become_ready()
        await rig.engine.wait_ready()
        assert await engines.health("127.0.0.1") == EngineHealth("ok", "")
        capacity = await engines.capacity("127.0.0.1")
        await engines.close()
    report = engine_report(config)
    assert capacity is not None
    assert (capacity.kv_tokens, capacity.num_blocks) == (report.kv_tokens, report.num_blocks)
    assert capacity.weights_bytes == report.weights_bytes
    assert capacity.device.reserve_bytes == report.peak_bytes - report.weights_bytes
    assert capacity.device.total_bytes == report.total_memory_bytes
    assert capacity.kv_bytes_per_token == report.kv_bytes_per_token
    assert capacity.max_sequences == report.concurrency[-1].sequences


async def test_what_became_of_drafts(tmp_path: Path) -> None:
    config = build_test_config(write_model_folder(tmp_path, context_tokens=64))
    async with serve_app(config) as rig:
        engines = HttpEngines(port=rig.port)
        rig.core.report_stats(drafts_total=4, draft_tokens_total=20, accepted_tokens_total=15)
        await eventually(lambda: rig.engine.stats is not None, "statistics came")
        found = await engines.metrics("127.0.0.1")
        assert found is not None
        assert found.drafts == DraftCounts(4, 20, 15)
        await engines.close()


async def test_what_it_has_to_do_and_has_cached(tmp_path: Path) -> None:
    config = build_test_config(write_model_folder(tmp_path, context_tokens=64))
    async with serve_app(config) as rig:
        engines = HttpEngines(port=rig.port)
        rig.core.report_stats(requests_running=3, requests_waiting=2, kv_blocks_indexed=7)
        await eventually(lambda: rig.engine.stats is not None, "statistics came")
        cached = 7 * engine_report(config).block_size
        found = await engines.metrics("127.0.0.1")
        assert found is not None
        assert found.load == EngineLoad(5, cached)
        await engines.close()
