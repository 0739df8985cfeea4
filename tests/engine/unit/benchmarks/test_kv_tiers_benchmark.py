"""The benchmark of the host's tier runs without a card, and its figures are of what it names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atom.model_engine.page_moves import Move
from atom.utils.device import detect_device
from benchmarks.engines import kv_tiers
from benchmarks.workloads.agent_turns import Agents, engine_of, play
from benchmarks.workloads.shapes import write_shape


class LateMover:
    """A mover whose moves are known once the caller has waited for them, as on a slow bus."""

    def __init__(self, mover: Any) -> None:
        self._mover, self._moved = mover, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mover, name)

    def move_pages(self, number: int, saves: list[Move], loads: list[Move]) -> None:
        self._mover.move_pages(number, saves, loads)
        if not loads:
            self._moved = number

    def moved_number(self) -> int:
        return self._moved

    def wait_moved(self, number: int) -> None:
        self._moved = max(self._moved, number)


def test_every_part_of_the_benchmark_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kv_tiers, "_SECONDS", 0.01)
    monkeypatch.setattr("sys.argv", ["kv_tiers", "--device", "cpu", "--tiny"])
    assert kv_tiers.main() == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["agents_computed_ratio"] < 0.8
    assert summary["same_answers"] == 15
    assert summary["same_answers_that_differ"] == 0
    assert summary["decode_loads_gb_per_s"] > 0
    assert summary["b16_prompt_gb"] == pytest.approx(1024 * 256 / 1e9, rel=0.3)


def test_agents_that_wait_for_pages_do_not_turn_without_a_step(tmp_path: Path) -> None:
    agents = Agents.tiny()
    engine = engine_of(write_shape("tiny", tmp_path), "cpu", agents, **agents.tier)
    assert engine.scheduler.tiers is not None
    engine.scheduler.tiers._mover = LateMover(engine.scheduler.tiers._mover)
    real, empty = engine.step, 0

    def step() -> Any:
        nonlocal empty
        result = real()
        empty += result is None
        assert empty < 1000, "the engine turns, and no page is waited for"
        return result

    engine.step = step  # type: ignore[method-assign]
    found = play(engine, agents)
    engine.close()
    assert len(found.answers) == agents.count * agents.turns
    assert engine.scheduler.tiers.counts.found_tokens > 0


def test_a_prompt_of_the_benchmark_returns_to_the_byte() -> None:
    cache = kv_tiers.Cache(detect_device("cpu"), kv_tiers.TINY, 16, 512)
    before = [segment.memory.clone() for segment in cache.table.segments]
    cache.save(range(cache.blocks))
    for segment in cache.table.segments:
        segment.memory.zero_()
    cache.wait(cache.move(loads=range(cache.blocks)))
    after = [segment.memory for segment in cache.table.segments]
    assert all(one.equal(other) for one, other in zip(before, after, strict=True))
