from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from atom.model_engine.wire.core_stats import StatsBody
from atom.model_engine.wire.engine_protocol import (
    EngineReport,
    ProgressBody,
    RankStats,
    UtilityResponseBody,
)
from atom.model_engine.wire.rank_answers import RankAnswers, RankStatsBoard
from tests.support.engine_core.front_half import (
    build_test_config,
    engine_report,
    write_model_folder,
)


@pytest.fixture
def report(tmp_path: Path) -> EngineReport:
    return engine_report(build_test_config(write_model_folder(tmp_path)))


def test_the_engine_is_ready_with_its_last_rank_and_counts_on_the_smallest(
    report: EngineReport,
) -> None:
    answers = RankAnswers(2)
    small = msgspec.structs.replace(report, num_blocks=60, kv_tokens=960, weights_bytes=5)
    assert answers.ready(1, small) is None
    assert answers.ready(1, small) is None, "the same rank twice is not two ranks"
    merged = answers.ready(0, report)
    assert merged is not None
    assert merged.num_blocks == 60
    assert [(rank.rank, rank.num_blocks) for rank in merged.ranks] == [(0, 100), (1, 60)]
    assert [rank.kv_tokens for rank in merged.ranks] == [
        100 * report.block_size,
        60 * report.block_size,
    ]
    assert merged.ranks[1].weights_bytes == 5


def test_progress_is_that_of_the_rank_furthest_behind() -> None:
    answers = RankAnswers(2)
    assert answers.progress(0, ProgressBody("loading", 0.5)) == ProgressBody("loading", 0.0)
    assert answers.progress(1, ProgressBody("loading", 0.2)) == ProgressBody("loading", 0.2)
    assert answers.progress(0, ProgressBody("sizing", 0.1)) == ProgressBody("loading", 0.2)
    assert answers.progress(1, ProgressBody("sizing", 0.0)) == ProgressBody("sizing", 0.0)


def test_a_utility_answers_with_every_ranks_result_in_order() -> None:
    answers = RankAnswers(2)
    assert answers.utility(1, UtilityResponseBody(7, None, "b")) is None
    assert answers.utility(0, UtilityResponseBody(8, None, "other")) is None
    assert answers.utility(0, UtilityResponseBody(7, None, "a")) == UtilityResponseBody(
        7, None, ["a", "b"]
    )


def test_a_utility_that_fails_in_one_rank_names_the_rank() -> None:
    answers = RankAnswers(2)
    answers.utility(0, UtilityResponseBody(7, None, "a"))
    merged = answers.utility(1, UtilityResponseBody(7, "ValueError: no"))
    assert merged is not None
    assert (merged.error, merged.result) == ("rank 1: ValueError: no", None)
    alone = RankAnswers(1).utility(0, UtilityResponseBody(7, "ValueError: no"))
    assert alone is not None
    assert alone.error == "ValueError: no", "one rank needs no name"


def test_calls_go_on_without_a_rank_that_is_gone() -> None:
    answers = RankAnswers(3)
    for call in (1, 2):
        assert answers.utility(0, UtilityResponseBody(call, None, "a")) is None
    assert answers.utility(2, UtilityResponseBody(1, None, "c")) is None
    assert answers.lose(1) == [UtilityResponseBody(1, None, ["a", "c"])]
    assert answers.utility(2, UtilityResponseBody(2, None, "d")) == UtilityResponseBody(
        2, None, ["a", "d"]
    )
    assert answers.utility(0, UtilityResponseBody(3, None, "e")) is None
    assert answers.utility(2, UtilityResponseBody(3, None, "f")) is not None


def test_totals_of_a_rank_that_is_gone_stay_and_its_gauges_are_nothing() -> None:
    board = RankStatsBoard(lambda: 5.0)
    for rank in (0, 1):
        stats = StatsBody(*range(1, 14), accepted_at_totals=(rank,))
        board.put(RankStats(rank, 1, stats))
    before = board.total
    assert before is not None
    board.lose(1)
    after, left = board.total, board.by_rank[0].stats
    assert after is not None
    for name in StatsBody.__struct_fields__:
        counts = "_total" in name and name != "kv_blocks_total"
        expected = getattr(before if counts else left, name)
        assert getattr(after, name) == expected, name
