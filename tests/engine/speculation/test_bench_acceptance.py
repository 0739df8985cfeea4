"""`atom bench serve` tells how many drafts held, from what our /metrics say."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest

from atom.entrypoints.bench.acceptance_report import (
    DraftTotals,
    acceptance,
    counted_drafts,
    draft_totals,
)
from atom.entrypoints.metrics.collector import _counters
from tests.support.engine_core.front_half import rank_stats


class Page:
    def __init__(self, **counts: object) -> None:
        self._stats = rank_stats(0, 1, **counts).stats  # type: ignore[arg-type]

    def collect(self) -> object:
        return _counters(self._stats, "m")


def totals(**counts: object) -> DraftTotals:
    return draft_totals(generate_latest(Page(**counts)).decode())  # type: ignore[arg-type]


def test_our_counters_become_vllms_report() -> None:
    before = totals(
        drafts_total=10, draft_tokens_total=30, accepted_tokens_total=3, accepted_at_totals=(3, 0)
    )
    after = totals(
        drafts_total=30, draft_tokens_total=90, accepted_tokens_total=33,
        accepted_at_totals=(18, 10, 5),
    )  # fmt: skip
    assert acceptance(before, after) == {
        "spec_decode_acceptance_rate": 50.0,
        "spec_decode_acceptance_length": 2.5,
        "spec_decode_num_drafts": 20,
        "spec_decode_draft_tokens": 60,
        "spec_decode_accepted_tokens": 30,
        "spec_decode_per_position_acceptance_rates": [0.75, 0.5, 0.25],
    }


def test_an_engine_in_the_process_counts_as_its_page_does() -> None:
    counts = {
        "drafts_total": 30, "draft_tokens_total": 90, "accepted_tokens_total": 33,
        "accepted_at_totals": (18, 10, 5),
    }  # fmt: skip
    assert counted_drafts(Page(**counts)._stats) == totals(**counts)
    assert counted_drafts(None) == DraftTotals()


def test_a_server_without_drafts_has_nothing_to_tell() -> None:
    assert acceptance(totals(), totals()) == {}
    assert draft_totals("") == DraftTotals()


def test_vllms_counters_are_read_as_well() -> None:
    page = (
        "# TYPE vllm:spec_decode_num_drafts counter\n"
        'vllm:spec_decode_num_drafts_total{engine="0"} 2.0\n'
        'vllm:spec_decode_num_drafts_total{engine="1"} 3.0\n'
    )
    assert draft_totals(page) == DraftTotals(drafts=5.0)


def test_a_page_of_something_else_is_no_counters() -> None:
    with pytest.raises(ValueError, match=r"."):
        draft_totals("<html>{")
