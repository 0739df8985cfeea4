"""The figures of a load on two servers that exchange pages."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engines.linked_engine import EngineOrder, EngineProcess
from benchmarks.workloads.checkpoints import write_checkpoint
from benchmarks.workloads.divided_load import (
    Differing,
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


class _Told(Engines):
    """Engines that answer at once. odd: prompts, by their first token and the way in which their
    answer is another one."""

    def __init__(self, odd: set[tuple[int, str]], source: str = "transferred") -> None:
        super().__init__()
        self._odd, self._source, self._ended = odd, source, 0
        self.at_once: set[int] = set()

    def whole(self, asked: Any, engine: int) -> None:
        self._answer(asked, f"whole {engine}")

    def divided(self, asked: Any) -> None:
        asked.seen.source = self._source
        self._answer(asked, f"divided {asked.salt}")

    def wait(self, count: int) -> None:
        self.at_once.add(count)
        self._ended -= count
        assert not self._ended

    def _answer(self, asked: Any, way: str) -> None:
        self._ended += 1
        is_odd = (asked.prompt[0], way) in self._odd
        asked.seen.tokens += [hash(way) if is_odd else 1] * asked.answer


@pytest.mark.parametrize("seed", range(8))
def test_differing_answers_are_counted_by_their_way(seed: int) -> None:
    dice = random.Random(seed)
    ways = ["whole 0", "whole 1", "divided ", "divided again"]
    prompts = [[number] for number in range(dice.randrange(1, 60))]
    odd = {(each[0], way) for each in prompts for way in ways if dice.random() < 0.2}

    def differing(one: str, other: str) -> int:
        return sum((each[0], one) in odd or (each[0], other) in odd for each in prompts)

    engines = _Told(odd)
    assert count_differing(engines, prompts, 3) == Differing(
        of_first=differing("divided ", "whole 0"),
        of_second=differing("divided ", "whole 1"),
        wholes=differing("whole 0", "whole 1"),
        again=differing("divided ", "divided again"),
    )
    assert len(engines.at_once) <= 2, "all ways have as many prompts at once"


def test_prompts_that_were_not_transferred_compare_nothing() -> None:
    with pytest.raises(SystemExit, match="not transferred: 'recomputed'"):
        count_differing(_Told(set(), "recomputed"), [[1]], 3)


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
        assert count_differing(engines, prompts, 6) == Differing()
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
