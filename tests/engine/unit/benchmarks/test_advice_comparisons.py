"""The loads and runs that predictions are compared on."""

from __future__ import annotations

from atom.advisor.simulation import Due
from atom.entrypoints.bench.arrivals import arrival_seconds
from atom.sizing import ModelFacts, valid_tensor_parallel_sizes
from atom.sizing.cards import CARDS
from atom_operator.plan.model_facts import catalogue_config
from benchmarks.advice.cpu_truth import LENGTHS, SHARES, UNSEEN
from benchmarks.advice.loads import EqualLoad
from benchmarks.advice.published import published
from benchmarks.step_rates.measure import CPU_CONFIGS
from benchmarks.workloads.shapes import SHAPES


def test_a_load_has_the_arrivals_of_the_client_that_it_is_compared_with() -> None:
    load = EqualLoad.at_rate(20, 3.0, (16, 4))
    assert [due.at_seconds for due in load.dues] == arrival_seconds(20, 3.0, 1.0, 0)
    assert (len(load.prompt(7)), load.output_tokens(7), load.prompt_tokens) == (16, 4, 320)
    assert load.prompt(7) != load.prompt(8)


def test_a_client_of_a_closed_loop_sends_after_its_own_answer() -> None:
    load = EqualLoad.in_loops(5, 2, (16, 4))
    assert load.dues == [Due(), Due(), Due(0.0, (0,)), Due(0.0, (1,)), Due(0.0, (2,))]


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
