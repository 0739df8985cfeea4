"""The figures of a load on two servers that exchange pages."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.engines.linked_engine import EngineOrder, EngineProcess
from benchmarks.workloads.checkpoints import write_checkpoint
from benchmarks.workloads.divided_load import (
    Engines,
    Load,
    Seen,
    Way,
    Window,
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
    found = figures(seen, Window(10.0, 14.0))
    assert found["steady_gap_p99_ms"] == pytest.approx(10)
    assert found["gap_p99_ms"] == found["longest_gap_ms"] == pytest.approx(200)
    assert found["ttft_p50_s"] == pytest.approx(1.0)
    assert found["ttft_p90_s"] == pytest.approx(3.0)
    assert found["long_requests_a_second"] == 1
    assert found["good_long_requests_a_second"] == 0.5, "one was late and one was slow"
    assert found["tokens_a_second"] == 5 * 11 / 4
    assert found["transferred_share"] == 0.5


def test_figures_are_of_the_time_that_is_measured() -> None:
    """The second answer had ended before, and the third one is the first of its stream."""
    seen = [
        answer(is_long=True, first=1.0, gap=0.02),
        answer(is_long=True, first=0.2, gap=0.2),
        answer(is_long=True, first=1.9, gap=0.5),
    ]
    seen[1].pieces = [each - 2.0 for each in seen[1].pieces]
    seen[2].is_warm = True
    found = figures(seen, Window(10.9, 12.0))
    assert [found["ttft_p50_s"], found["ttft_p99_s"]] == pytest.approx([1.0, 1.0])
    assert [found["gap_p50_ms"], found["longest_gap_ms"]] == pytest.approx([20, 20])
    assert found["long_requests_a_second"] == pytest.approx(1 / 1.1)
    assert found["tokens_a_second"] == pytest.approx(12 / 1.1)


def test_first_answers_of_a_spread_load_have_unlike_lengths() -> None:
    load = Load(1, 3, 100, 8, 8, 500, 1.0, spread=True)
    assert [load.first_answer(stream) for stream in range(4)] == [2, 4, 6, 8]
    assert [replace(load, spread=False).first_answer(stream) for stream in range(4)] == [8] * 4


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
        for way, spread in itertools.product(Way, (False, True)):
            answers, window = run(engines, way, replace(load, spread=spread), 3 + spread)
            sources = {each.source for each in answers if each.is_long}
            assert sources == {"transferred" if way is Way.DIVIDED else ""}
            assert all(len(each.pieces) == 4 for each in answers if not each.is_warm)
            assert any(each.is_warm for each in answers) is spread
            assert all(each.started < window.begin for each in answers if each.is_warm)
    finally:
        for each in both:
            each.close()
