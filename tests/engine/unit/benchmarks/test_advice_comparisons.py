"""The loads and runs that predictions are compared on."""

from __future__ import annotations

from pathlib import Path

import pytest

from atom.advisor.rates import Tables
from atom.advisor.simulation import Due
from atom.entrypoints.bench.arrivals import arrival_seconds
from atom.sizing import ModelFacts, valid_tensor_parallel_sizes
from atom.sizing.cards import CARDS
from atom_operator.plan.model_facts import catalogue_config, facts_from_catalogue
from benchmarks.advice.cpu_truth import LENGTHS, SHARES, UNSEEN
from benchmarks.advice.h200_truth import LOADS, MODELS, Served, chosen, errors, started
from benchmarks.advice.loads import EqualLoad
from benchmarks.advice.open_loop import serve
from benchmarks.advice.planner_rows import ROWS, answer
from benchmarks.advice.published import published
from benchmarks.advice.records import Form
from benchmarks.step_rates.measure import CPU_CONFIGS
from benchmarks.step_rates.recorded_steps import RecordedEngine
from benchmarks.workloads.shapes import SHAPES, write_shape


def test_a_load_has_the_arrivals_of_the_client_that_it_is_compared_with() -> None:
    load = EqualLoad.at_rate(20, 3.0, (16, 4))
    assert [due.at_seconds for due in load.dues] == arrival_seconds(20, 3.0, 1.0, 0)
    assert (len(load.prompt(7)), load.output_tokens(7), load.prompt_tokens) == (16, 4, 320)
    assert load.prompt(7) != load.prompt(8)


def test_a_client_of_a_closed_loop_sends_after_its_own_answer() -> None:
    load = EqualLoad.in_loops(5, 2, (16, 4))
    assert load.dues == [Due(), Due(), Due(0.0, (0,)), Due(0.0, (1,)), Due(0.0, (2,))]


def test_rows_of_the_other_planner_are_of_known_models_and_one_fits_no_card() -> None:
    assert all(facts_from_catalogue(row.source).facts for row in ROWS)
    (large,) = (row for row in ROWS if row.source.endswith("GLM-4.5-Air"))
    assert answer(large, Tables.packaged()).startswith("does not fit")


def test_published_runs_name_known_models_cards_and_a_source() -> None:
    runs = list(published())
    figures = [value for run in runs for value in (run.output_rate, run.tpot_ms) if value]
    assert len(figures) >= 15
    for run in runs:
        config = catalogue_config(run.source)
        assert config is not None, run.source
        assert run.ranks in valid_tensor_parallel_sizes(ModelFacts.from_hf_config(config))
        assert run.card in CARDS
        assert run.page


def test_shapes_that_are_served_for_comparison_are_not_those_of_the_table() -> None:
    assert len(UNSEEN) * len(LENGTHS) * len(SHARES) >= 30
    for changes in UNSEEN.values():
        config = {**SHAPES["tiny-12k"], **changes}
        assert config not in CPU_CONFIGS.values()
        assert ModelFacts.from_hf_config(config).num_layers


def test_an_open_loop_notes_every_token_of_an_engine(tmp_path: Path) -> None:
    write_shape("tiny", tmp_path)
    engine = started(Served(Form("tiny")), tmp_path, "cpu")
    recorded = RecordedEngine(engine)
    outcome = serve(engine, EqualLoad.at_rate(6, 50.0, (24, 5)), 600.0)
    assert len(outcome.gap_seconds) == 6 * 4
    assert [each is not None and each.output_tokens for each in outcome.served] == [5] * 6
    assert all(each is not None and each.ttft > 0 for each in outcome.served)
    assert outcome.steps == len(recorded.steps)
    assert sum(each.shape.prompt_tokens for each in recorded.steps) == 6 * 24
    engine.close()


def test_a_request_that_does_not_end_in_time_counts_as_not_served(tmp_path: Path) -> None:
    write_shape("tiny", tmp_path)
    engine = started(Served(Form("tiny")), tmp_path, "cpu")
    outcome = serve(engine, EqualLoad.at_rate(3, 1e9, (24, 5)), 0.0)
    assert outcome.served == (None,) * 3
    assert not engine.has_work()
    engine.close()


def test_models_beside_a_card_are_fitted_or_held_out_and_loads_go_from_idle_to_over() -> None:
    assert {each.held_out for each in MODELS} == {True, False}
    assert min(each.share for each in LOADS) < 0.2 < 1.0 < max(each.share for each in LOADS)
    for each in MODELS:
        assert each.facts.num_layers


def test_errors_are_shares_of_the_seen_figures() -> None:
    pair = {"seen": {"ttft p50": 2.0}, "predicted": {"ttft p50": 1.0}}
    keys = ("ttft p90", "itl p50", "tpot p90", "requests/s", "goodput/s")
    seen = {**pair["seen"], **dict.fromkeys(keys, 0.0)}
    found = errors([{"seen": seen, "predicted": {**seen, **pair["predicted"]}}])
    assert found == {"ttft p50": {"median": pytest.approx(0.5), "p95": pytest.approx(0.5)}}
    assert chosen([]) == []
