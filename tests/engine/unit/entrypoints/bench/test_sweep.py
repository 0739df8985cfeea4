"""Sweeps: which runs the flags ask for, and what is told of them."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.entrypoints.bench.charts.chart import ticks
from atom.entrypoints.bench.charts.svg_chart import svg_chart
from atom.entrypoints.bench.charts.text_chart import text_chart
from atom.entrypoints.bench.load import Load, loads_of, warm_up_seed
from atom.entrypoints.bench.report_options import ReportOptions
from atom.entrypoints.bench.sweep_report import Sweep, print_sweep, sweep_chart
from atom.entrypoints.cli import build_parser
from atom.errors import ConfigError


def loads(*words: str) -> list[Load]:
    return loads_of(build_parser().parse_args(["bench", "serve", *words]))


def test_one_value_is_one_run_and_several_are_a_sweep() -> None:
    assert loads() == [Load()]
    assert loads("--request-rate", "4", "--max-concurrency", "2") == [Load(4.0, 2)]
    assert [load.request_rate for load in loads("--request-rate", "1,2.5,8")] == [1.0, 2.5, 8.0]
    limited = loads("--max-concurrency", "1,16", "--request-rate", "3")
    assert [(load.request_rate, load.max_concurrency) for load in limited] == [(3, 1), (3, 16)]


def test_a_trace_keeps_its_times_unless_it_is_told_not_to() -> None:
    trace = ("--dataset-name", "timed_trace")
    assert loads(*trace)[0].told_rate == "self-timed"
    (load,) = loads(*trace, "--no-self-timed", "--request-rate", "2")
    assert (load.is_self_timed, load.told_rate) == (False, 2.0)
    assert loads(*trace, "--no-self-timed")[0].told_rate == "inf"
    assert all(load.is_self_timed for load in loads(*trace, "--max-concurrency", "1,2"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--request-rate", "1,2", "--max-concurrency", "1,2"], "give one of them one value"),
        (["--request-rate", "1,inf"], "inf has no place in a sweep's chart"),
        (["--self-timed"], "is for timed_trace and weka_trace"),
        (["--dataset-name", "timed_trace", "--request-rate", "2"], "add --no-self-timed to begin"),
    ],
)
def test_flags_that_exclude_each_other_are_refused(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        loads(*words)


def test_each_run_of_a_sweep_has_prompts_of_its_own() -> None:
    seeds = {load.seed(7) for load in loads("--request-rate", "1,2,4")}
    assert len(seeds | {7, warm_up_seed(7)}) == 5
    assert Load().seed(7) == 7, "one run's prompts are those of its seed"


def report(rate: float, answered: float, good: float) -> dict[str, Any]:
    fields = {f"p{percent}_ttft_ms": rate * percent for percent in (50, 99)}
    return {
        "model_id": "tiny & co", "request_rate": rate, "request_throughput": answered,
        "request_goodput": good, "output_throughput": 10 * answered, "failed": 0, **fields,
    }  # fmt: skip


OPTIONS = ReportOptions(metrics=("ttft",), percentiles=(50.0, 99.0), goodput={"ttft": 200.0})
SWEEP = Sweep("request_rate", [report(2, 2, 2), report(8, 6, 1), report(4, 4, 3.9)], OPTIONS)


def test_a_sweep_ends_in_a_table_a_chart_the_best_and_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_sweep("serving at x", SWEEP)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["rate", "answered/s", "goodput/s", "tokens/s", "ttft", "p50",
                                "ttft", "p99", "failed"]  # fmt: skip
    assert lines[3].split() == ["8", "6", "1", "60", "400", "792", "0"]
    assert "highest goodput: 3.9 requests/s, at 4 requests sent per second" in lines
    assert json.loads(lines[-1]) == {"sweep": "request_rate", "points": SWEEP.reports}


def test_without_bounds_it_draws_what_was_answered_and_says_how_to_name_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_sweep("x", Sweep("request_rate", SWEEP.reports, ReportOptions(("ttft",), (50.0,))))
    out = capsys.readouterr().out
    assert "highest throughput: 6 requests/s, at 8" in out
    assert "--goodput ttft:500 tpot:50" in out
    assert "○" not in out, "one line, and the one for comparison"


def test_the_chart_in_characters_has_each_point_at_its_place() -> None:
    chart = sweep_chart(SWEEP)
    lines = text_chart(chart, columns=41, rows=7).splitlines()
    assert lines[0] == "tiny & co, goodput within ttft ≤ 200 ms"
    body = [line.split("┤")[1].ljust(41) for line in lines if "┤" in line]
    # 0 to 8 sent and 0 to 6 answered: a column each 0.2, a row each 1.
    assert {(col, row) for row in range(7) for col in range(41) if body[row][col] == "●"} == {
        (10, 4), (20, 2), (40, 5)
    }  # fmt: skip
    assert {(col, row) for row in range(7) for col in range(41) if body[row][col] == "○"} == {
        (40, 0)
    }, "where both are equal, goodput is in front"
    assert lines[-1] == "● goodput   ○ answered   · sent"


def test_the_picture_needs_nothing_else_and_names_every_point() -> None:
    text = svg_chart(sweep_chart(SWEEP))
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    titles = [each.text for each in root.iter(f"{space}title")]
    assert titles[0] == "tiny & co, goodput within ttft ≤ 200 ms"
    assert "goodput: 3.9 at 4" in titles
    assert "answered: 6 at 8" in titles
    assert "goodput: 2 at 2, 3.9 at 4, 1 at 8" in root.find(f"{space}desc").text  # type: ignore
    assert "prefers-color-scheme: dark" in text
    assert text.count("http") == 1, "the namespace, and no other address"


positive = st.floats(1e-6, 1e9)


@given(positive)
def test_an_axis_has_a_few_round_marks_that_reach_the_most(most: float) -> None:
    marks = ticks(most)
    assert marks[0] == 0
    assert marks[-1] >= most * (1 - 1e-6)
    assert 2 <= len(marks) <= 7
    steps = {round(later - earlier, 12) for earlier, later in itertools.pairwise(marks)}
    assert max(steps) == pytest.approx(min(steps), rel=1e-3)


@given(
    st.lists(st.tuples(positive, st.floats(0, 1e6), st.floats(0, 1e6)), min_size=1, max_size=6,
             unique_by=lambda point: point[0])
)  # fmt: skip
def test_any_sweep_can_be_drawn(points: list[tuple[float, float, float]]) -> None:
    reports = [report(rate, answered, good) for rate, answered, good in points]
    chart = sweep_chart(Sweep("request_rate", reports, OPTIONS))
    drawn = text_chart(chart)
    assert "●" in drawn
    ElementTree.fromstring(svg_chart(chart))
    assert not math.isnan(chart.most_y)
