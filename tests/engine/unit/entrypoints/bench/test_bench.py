"""`atom bench serve`: when it sends what, and what it makes of the answers."""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path

import pytest

from atom.entrypoints.bench.arrivals import arrival_seconds
from atom.entrypoints.bench.exchange import Exchange
from atom.entrypoints.bench.report_options import ReportOptions
from atom.entrypoints.bench.serve_args import report_options
from atom.entrypoints.bench.serving_report import serving_report
from atom.entrypoints.bench.workload import (
    Ask,
    RandomLengths,
    custom_asks,
    random_asks,
    sharegpt_asks,
)
from atom.entrypoints.cli import build_parser
from atom.errors import ConfigError


def gaps_of(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def test_without_a_rate_all_come_at_once() -> None:
    assert arrival_seconds(3, float("inf"), 1.0, 0) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 50.0])
def test_requests_come_at_the_rate_however_bursty(burstiness: float) -> None:
    times = arrival_seconds(1001, 20.0, burstiness, 1)
    assert times[0] == 0.0
    assert times[-1] == pytest.approx(50.0)
    assert times == sorted(times)
    # The gaps of a gamma process vary by 1 / √burstiness of their mean.
    spread = statistics.pstdev(gaps_of(times)) / statistics.fmean(gaps_of(times))
    assert spread == pytest.approx(burstiness**-0.5, rel=0.2)


def test_a_seed_gives_the_same_arrivals_and_prompts_again() -> None:
    lengths = RandomLengths(10, 5, range_ratio=0.5)
    assert arrival_seconds(9, 2.0, 1.0, 7) == arrival_seconds(9, 2.0, 1.0, 7)
    assert arrival_seconds(9, 2.0, 1.0, 7) != arrival_seconds(9, 2.0, 1.0, 8)
    assert random_asks(9, lengths, 50, 7) == random_asks(9, lengths, 50, 7)


def test_random_lengths_fill_their_range_and_share_a_prefix() -> None:
    asks = random_asks(400, RandomLengths(20, 10, range_ratio=0.5, prefix_tokens=6), 1000, 0)
    prompts = [ask.prompt for ask in asks]
    assert {len(prompt) for prompt in prompts} == set(range(6 + 10, 6 + 31))
    assert {ask.output_tokens for ask in asks} == set(range(5, 16))
    assert len({tuple(prompt[:6]) for prompt in prompts}) == 1
    assert len({tuple(prompt[6:16]) for prompt in prompts}) == 400


def test_a_file_of_prompts_is_repeated_when_it_is_too_short(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "output_tokens": 3}\n{"prompt": [1, 2]}\n')
    first, second = Ask("a", 3), Ask([1, 2], 64)
    assert custom_asks(path, 3, None) == [first, second, first]
    assert custom_asks(path, 1, 9) == [Ask("a", 9)]


@pytest.mark.parametrize("line", ["x", "[1]", '{"text": "a"}', '{"prompt": ""}', '{"prompt": 1}'])
def test_a_line_without_a_prompt_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n' + line)
    with pytest.raises(ConfigError, match=r"prompts.jsonl, line 2: "):
        custom_asks(path, 1, None)


async def count_words(text: str) -> int:
    return len(text.split())


async def test_conversations_of_usual_length_are_asked(tmp_path: Path) -> None:
    def conversation(question: int, answer: int) -> dict[str, object]:
        turns = [{"value": f"q{question} " * question}, {"value": "a " * answer}]
        return {"conversations": turns}

    path = tmp_path / "conversations.json"
    lengths = [(3, 50), (4, 4), (4, 3), (1024, 1024), (1025, 9), (1024, 1025), (9, 30)]
    held = [conversation(*pair) for pair in lengths] + [{"conversations": []}]
    path.write_text(json.dumps(held))
    asks = await sharegpt_asks(path, 3, None, 0, count_words)
    assert {ask.output_tokens for ask in asks} == {4, 30, 1024}
    asks = await sharegpt_asks(path, 8, 5, 0, count_words)
    assert len(asks) == 8
    assert {ask.output_tokens for ask in asks} == {5}


async def test_a_file_that_is_no_dataset_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(ConfigError, match="check --dataset-path"):
        custom_asks(path, 1, None)
    path.write_text('{"a": 1}')
    with pytest.raises(ConfigError, match="ShareGPT"):
        await sharegpt_asks(path, 1, None, 0, count_words)
    path.write_text("[]")
    with pytest.raises(ConfigError, match="no conversation"):
        await sharegpt_asks(path, 1, None, 0, count_words)


def exchange(ttft: float, gaps: list[float], *, tokens: int, error: str | None = None) -> Exchange:
    return Exchange(ttft, ttft + sum(gaps), gaps, 10, tokens, error)


def test_the_report_is_of_what_was_answered_and_counts_what_was_not() -> None:
    exchanges = [
        exchange(0.1, [0.2, 0.2], tokens=5),  # several tokens in one piece
        exchange(0.3, [], tokens=1),
        exchange(9.0, [9.0], tokens=9, error="HTTP 500"),
        exchange(9.0, [9.0], tokens=9, error="HTTP 500"),
        exchange(9.0, [9.0], tokens=9, error="gone"),
    ]
    goodput = {"ttft": 150.0, "itl": 200.0 + 1e-6}
    report = serving_report(exchanges, 2.0, ReportOptions(percentiles=(50.0,), goodput=goodput))
    assert (report["completed"], report["failed"]) == (2, 3)
    assert report["errors"] == {"HTTP 500": 2, "gone": 1}
    assert (report["total_input_tokens"], report["total_output_tokens"]) == (20, 6)
    assert (report["request_throughput"], report["request_goodput"]) == (1.0, 0.5)
    assert (report["output_throughput"], report["total_token_throughput"]) == (3.0, 13.0)
    assert report["mean_ttft_ms"] == pytest.approx(200.0)
    assert report["std_ttft_ms"] == pytest.approx(100.0)
    assert report["mean_tpot_ms"] == pytest.approx(100.0), "of answers with a second token"
    assert report["p50_itl_ms"] == pytest.approx(200.0)
    assert report["median_e2el_ms"] == pytest.approx(400.0)


def test_a_report_of_failures_only_is_zeros() -> None:
    report = serving_report([exchange(1.0, [], tokens=0, error="x")], 1.0, ReportOptions())
    assert (report["completed"], report["p99_ttft_ms"], report["mean_tpot_ms"]) == (0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--percentile-metrics", "ttft,tttf"], "no metric 'tttf'"),
        (["--metric-percentiles", "50,101"], "numbers of 0 to 100"),
        (["--metric-percentiles", "p99"], "numbers of 0 to 100"),
        (["--goodput", "ttft"], "METRIC:MILLISECONDS"),
        (["--goodput", "speed:3"], "no metric 'speed'"),
    ],
)
def test_what_cannot_be_reported_is_refused(words: list[str], told: str) -> None:
    args = build_parser().parse_args(["bench", "serve", *words])
    with pytest.raises(ConfigError, match=told):
        report_options(args)


@pytest.mark.parametrize(
    "words",
    [
        ["--request-rate", "0"],
        ["--num-prompts", "0"],
        ["--random-range-ratio", "1"],
        ["--extra-body", "[1]"],
        ["--dataset-name", "poems"],
    ],
)
def test_wrong_load_is_wrong_usage(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(["bench", "serve", *words])
    assert ended.value.code == 2
