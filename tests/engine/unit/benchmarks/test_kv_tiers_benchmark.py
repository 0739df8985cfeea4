"""The benchmark of the host's tier runs without a card, and its figures are of what it names."""

from __future__ import annotations

import json

import pytest

from atom.utils.device import detect_device
from benchmarks.engines import kv_tiers


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


def test_a_prompt_of_the_benchmark_returns_to_the_byte() -> None:
    cache = kv_tiers.Cache(detect_device("cpu"), kv_tiers.TINY, 16, 512)
    before = [segment.memory.clone() for segment in cache.table.segments]
    cache.save(range(cache.blocks))
    for segment in cache.table.segments:
        segment.memory.zero_()
    cache.wait(cache.move(loads=range(cache.blocks)))
    after = [segment.memory for segment in cache.table.segments]
    assert all(one.equal(other) for one, other in zip(before, after, strict=True))
