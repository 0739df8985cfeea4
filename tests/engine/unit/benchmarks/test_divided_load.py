"""The figures of a load on two servers that exchange pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.engines.linked_engine import EngineOrder, EngineProcess
from benchmarks.workloads.checkpoints import write_checkpoint
from benchmarks.workloads.divided_load import (
    Engines,
    Load,
    Seen,
    Way,
    count_differing,
    figures,
    run,
)


def answer(*, is_long: bool, first: float, gap: float, source: str = "") -> Seen:
    pieces = [10.0 + first + gap * number for number in range(11)]
    return Seen(is_long, 10.0, pieces, [1] * 11, source)


def test_figures_part_steady_answers_from_long_ones() -> None:
    seen = [
        answer(is_long=False, first=0.1, gap=0.01),
        answer(is_long=True, first=1.0, gap=0.02, source="transferred"),
        answer(is_long=True, first=3.0, gap=0.02, source="transferred"),
        answer(is_long=True, first=1.0, gap=0.2, source="recomputed"),
        answer(is_long=True, first=0.5, gap=0.02),
    ]
    found = figures(seen, 2.0)
    assert found["steady_gap_p99_ms"] == pytest.approx(10)
    assert found["gap_p99_ms"] == found["longest_gap_ms"] == pytest.approx(200)
    assert found["ttft_p50_s"] == pytest.approx(1.0)
    assert found["ttft_p90_s"] == pytest.approx(3.0)
    assert found["long_requests_a_second"] == 2
    assert found["good_long_requests_a_second"] == 1, "one was late and one was slow"
    assert found["tokens_a_second"] == 5 * 11 / 2
    assert found["transferred_share"] == 0.5


@pytest.mark.whole
def test_engines_answer_whole_and_divided_requests_alike(tmp_path: Path) -> None:
    model = write_checkpoint("tiny", tmp_path)
    options = {"device": "cpu", "num_kv_blocks": 200, "max_model_len": 512, "reproducible": True}
    both = [EngineProcess(EngineOrder(str(model), options, {})) for _ in range(2)]
    try:
        for each in both:
            each.wait_ready()
        engines = Engines(*both)
        prompts = [[5 + number] * 200 for number in range(2)]
        assert count_differing(engines, prompts, 6) == 0
        load = Load(1, 1, 100, 4, 8, 500, 0.01)
        for way in Way:
            answers, _ = run(engines, way, load, 3)
            sources = {each.source for each in answers if each.is_long}
            assert sources == {"transferred" if way is Way.DIVIDED else ""}
            assert all(len(each.pieces) == 4 for each in answers)
    finally:
        for each in both:
            each.close()
