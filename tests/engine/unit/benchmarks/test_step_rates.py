"""Rates are found again from the steps that they made, and published figures give the shipped
table."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.advisor.operations import ModelWork, Operation, model_work
from atom.advisor.rates import ASSUMED, Curve, Evidence, Rates, StepSeconds, Tables, read_table
from atom.advisor.step_shape import StepShape
from atom.advisor.step_time import StepTimer
from atom.errors import ConfigError
from atom.sizing import KV_ELEMENTS, ModelFacts, Sharding
from atom.sizing.cards import CARDS
from benchmarks.advice.card_records import held_up as held_up_in
from benchmarks.advice.card_records import timed
from benchmarks.advice.h200_truth import Served
from benchmarks.advice.records import Form, QuietSteps, SeenLoad, read
from benchmarks.step_rates import measure
from benchmarks.step_rates.figures import Figures
from benchmarks.step_rates.fit import Fitted, TimedStep, fit, relative_errors
from benchmarks.step_rates.measure import Plan, timed_steps
from benchmarks.step_rates.rates_table import TableSource, write_table
from benchmarks.workloads.shapes import SHAPES

CARD = CARDS["MI300X"]
RUN = Path("benchmarks/advice/h200_run.jsonl.gz")
FIGURES = Path("benchmarks/step_rates/h200_figures.json")
TRUE = Rates(
    {
        **ASSUMED.shares,
        Operation.MATRICES: Curve(((1.0, 0.8), (64.0, 0.7), (4096.0, 0.5))),
        Operation.DECODE_ATTENTION: Curve(((1.0, 0.3), (64.0, 0.7))),
    },
    StepSeconds(step=1e-4, layer=1e-5, row=1e-6, prompt=5e-5),
    0.0,
    Evidence.MEASURED,
)


def work(name: str) -> ModelWork:
    facts = ModelFacts.from_hf_config(SHAPES[name])
    return model_work(facts, KV_ELEMENTS["bf16"], Sharding(1))


@cache
def made_steps(noise: float = 0.0) -> tuple[TimedStep, ...]:
    """Steps of four shapes that take as long as TRUE says, give or take the noise."""
    draw, steps = np.random.default_rng(1), []
    for name in ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b"):
        model = work(name)
        shapes = [
            StepShape.decodes(rows, context) for rows in (1, 8, 64, 256) for context in (64, 4096)
        ]
        shapes += [
            StepShape.prompt(tokens, before) for tokens in (64, 512, 8192) for before in (0, 4096)
        ]
        for shape in shapes:
            seconds = StepTimer(model, CARD, TRUE).seconds(shape)
            steps.append(TimedStep(name, model, shape, seconds * (1 + draw.uniform(-noise, noise))))
    return tuple(steps)


@cache
def fitted_to(noise: float = 0.0) -> Fitted:
    return fit(made_steps(noise), CARD)


def test_a_fit_predicts_the_steps_that_it_was_made_of_and_those_of_an_unseen_shape() -> None:
    fitted = fitted_to()
    assert float(np.median(relative_errors(made_steps(), CARD, fitted.rates()))) < 0.03
    assert fitted.error.median < 0.04
    unseen = work("llama-3.1-8b")
    for shape in (StepShape.decodes(32, 1000), StepShape.prompt(2000)):
        true = StepTimer(unseen, CARD, TRUE).seconds(shape)
        assert StepTimer(unseen, CARD, fitted.rates()).seconds(shape) == pytest.approx(
            true, rel=0.1
        )


def test_the_error_of_a_table_grows_with_the_noise_of_its_steps() -> None:
    errors = [fitted_to(noise).error.p90 for noise in (0.0, 0.2)]
    assert errors[0] < 0.1 < errors[1]


def test_no_share_exceeds_a_published_peak_and_no_second_is_negative() -> None:
    for noise in (0.0, 0.2):
        fitted = fitted_to(noise)
        shares = [share for points in fitted.shares.values() for _, share in points]
        assert all(0 < share <= 1.0 + 1e-9 for share in shares)
        fixed = fitted.seconds
        assert min(fixed.step, fixed.layer, fixed.row, fixed.prompt) >= 0


def test_steps_that_the_host_held_up_give_its_launches_and_no_share_of_the_device() -> None:
    known = made_steps()
    held_up = [
        replace(step, seconds=0.03, host_seconds=0.001 * step.work.layers)
        for step in known
        if step.shape.chunks and step.shape.prompt_tokens == 512
    ]
    fitted, alone = fit([*known, *held_up], CARD), fitted_to()
    assert fitted.seconds.launch == pytest.approx(0.001)
    assert fitted.shares == alone.shares
    assert alone.seconds.launch == 0


KINDS_OF_LAUNCHES = (
    ("launch", Form("qwen3-8b"), 0),
    ("launch_quantised", Form("qwen3-8b", "fp8"), 0),
    ("launch_experts", Form("qwen3-30b-a3b"), 0),
    ("launch_sum", Form("qwen3-8b", None, 2), 0),
    ("launch_mixed", Form("qwen3-8b"), 3),
)


def held_up(form: Form, answers: int, true: StepSeconds) -> list[TimedStep]:
    """Steps that a host launches in its seconds, and one in which it was busy otherwise, too."""
    launched = model_work(Served(form).facts, KV_ELEMENTS["bf16"], Sharding(form.ranks))
    contexts = np.full(answers, 600, dtype=np.int64)
    shape = replace(StepShape.prompt(512), contexts=contexts, decode_tokens=answers)
    work = launched.launches.beside_answers() if answers else launched.launches
    host = true.of_host(work)
    return [TimedStep(form.shape, launched, shape, n * host, n * host) for n in (1, 1, 3)]


@given(
    seconds=st.tuples(*[st.floats(1e-5, 1e-3)] * len(KINDS_OF_LAUNCHES)),
    unseen=st.sets(st.sampled_from(range(1, len(KINDS_OF_LAUNCHES)))),
)
def test_launches_are_told_apart_by_kind_and_assumed_of_kinds_that_no_step_has(
    seconds: tuple[float, ...], unseen: set[int]
) -> None:
    names = [name for name, *_ in KINDS_OF_LAUNCHES]
    true = StepSeconds(**dict(zip(names, seconds, strict=True)))
    steps = [
        step
        for at, (_, *step_of) in enumerate(KINDS_OF_LAUNCHES)
        if at not in unseen
        for step in held_up(*step_of, true)
    ]
    found = fit([*made_steps(), *steps], CARD).seconds
    for at, name in enumerate(names):
        told = getattr(true, name)
        if at in unseen:
            told = getattr(ASSUMED.seconds, name) * true.launch / ASSUMED.seconds.launch
        assert getattr(found, name) == pytest.approx(told, rel=0.02, abs=2e-6), name


def test_the_inputs_of_prompts_that_the_device_waits_for_are_told_from_its_own_seconds() -> None:
    """The fit tells inputs of prompts made behind other steps from those that the device awaits."""
    behind = made_steps()
    alone = [
        replace(step, seconds=step.seconds + 0.002, prepared=True)
        for step in behind
        if step.shape.chunks
    ]
    fitted, known = fit([*behind, *alone], CARD), fit(behind, CARD)
    assert fitted.seconds.prepare == pytest.approx(0.002, rel=0.1)
    assert fitted.error.median < 0.04
    for operation, points in known.shares.items():
        assert dict(fitted.shares[operation]) == pytest.approx(dict(points), rel=0.1)
    held_up = replace(alone[0], seconds=0.03, host_seconds=0.002 + 0.001 * alone[0].work.layers)
    assert fit([*behind, *alone, held_up], CARD).seconds.launch == pytest.approx(0.001, rel=0.1)
    assert known.seconds.prepare == 0


def test_two_shapes_are_too_few_for_an_error() -> None:
    with pytest.raises(ValueError, match="2 shapes are too few"):
        fit([step for step in made_steps() if step.name in ("qwen3-0.6b", "qwen3-8b")], CARD)


def test_a_written_table_is_read_with_its_rates(tmp_path: Path) -> None:
    steps, fitted = made_steps(), fitted_to()
    path = tmp_path / "mi300x.json"
    write_table(path, CARD, fitted, steps, TableSource("a card", "2026-01-01"))
    rates = Tables.of(tmp_path).rates(CARD)
    assert (rates.evidence, rates.of) == (Evidence.MEASURED, "MI300X")
    assert rates.error == pytest.approx(fitted.error.p90, abs=1e-4)
    for step in steps:
        expected = StepTimer(step.work, CARD, fitted.rates()).seconds(step.shape)
        assert StepTimer(step.work, CARD, rates).seconds(step.shape) == pytest.approx(
            expected, rel=1e-3
        )


def test_a_written_table_is_read_however_slow_an_operation_was(tmp_path: Path) -> None:
    steps, fitted = made_steps(), fitted_to()
    slow = dict.fromkeys(fitted.shares, ((64.0, 3.2e-06),))
    path = tmp_path / "busy.json"
    write_table(
        path, CARD, replace(fitted, shares=slow), steps, TableSource("a card", "2026-01-01")
    )
    assert read_table(path).efficiencies == {name.value: [(64.0, 3.2e-6)] for name in slow}


def test_the_shipped_table_is_the_fit_of_the_published_figures(tmp_path: Path) -> None:
    figures, card = Figures.read(FIGURES), CARDS["H200"]
    run = list(read([RUN]))
    quiet = [each for each in run if isinstance(each, QuietSteps)]
    loads = [each for each in run if isinstance(each, SeenLoad)]
    steps = [*timed(quiet), *held_up_in(loads), *figures.steps]
    source = replace(figures.source, date="2026-11-30")
    write_table(tmp_path / "h200.json", card, fit(steps, card), steps, source)
    fresh, shipped = read_table(tmp_path / "h200.json"), Tables.packaged().by_card["H200"]
    assert fresh.source == shipped.source
    assert fresh.host_bytes_per_second == shipped.host_bytes_per_second > 0
    assert fresh.error.median == pytest.approx(shipped.error.median, abs=0.01)
    for name, points in shipped.efficiencies.items():
        assert [share for _, share in fresh.efficiencies[name]] == pytest.approx(
            [share for _, share in points], rel=0.02
        )


def test_published_figures_are_those_of_their_page() -> None:
    page = Path("docs/results/gpu/figures.md").read_text(encoding="utf-8")
    for step in Figures.read(FIGURES).steps:
        if step.name == "qwen3-8b" and step.work.ranks == 1 and len(step.shape.contexts) == 256:
            assert f"{step.seconds * 1e3:.3f}" in page


def test_assumed_shares_are_as_far_from_the_card_as_the_results_say() -> None:
    figures, card = Figures.read(FIGURES), CARDS["H200"]
    errors = relative_errors(figures.steps, card, ASSUMED)
    page = Path("docs/results/advice.md").read_text(encoding="utf-8")
    median, most = np.median(errors), np.percentile(errors, 90)
    assert f"| {median * 100:.1f} % | {most * 100:.1f} % |" in page
    assert most < ASSUMED.error


def test_steps_of_an_engine_are_recorded_by_their_shapes(tmp_path: Path) -> None:
    config = {
        **SHAPES["tiny-12k"],
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "vocab_size": 128,
    }
    plan = Plan(rows=(1, 4), lengths=(8, 40), max_model_len=256, max_num_batched_tokens=64)
    steps = list(timed_steps("small", config, "cpu", plan))
    decodes = {
        (len(step.shape.contexts), int(step.shape.contexts.min()) > 40)
        for step in steps
        if not step.shape.chunks
    }
    assert decodes == {(1, False), (1, True), (4, False), (4, True)}
    prompts = [step.shape for step in steps if step.shape.chunks]
    assert {8, 40} <= {shape.prompt_tokens for shape in prompts if not len(shape.contexts)}
    assert any(chunk.computed for shape in prompts for chunk in shape.chunks)
    assert any(len(shape.contexts) for shape in prompts), "a prompt came beside answers"
    assert all(step.seconds > 0 for step in steps)


def test_a_processor_is_measured_into_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 128}
    configs = {
        f"layers {count}": {**SHAPES["tiny-12k"], **small, "num_hidden_layers": count}
        for count in (1, 2, 3)
    }
    monkeypatch.setattr(measure, "CPU_CONFIGS", configs)
    monkeypatch.setattr(measure, "CPU_PLAN", Plan((1, 2), (8,), 256, 64))
    path = tmp_path / "cpu.json"
    measure.measure_rates(path, tuple(configs), "cpu")
    table = read_table(path)
    assert table.source.shapes == sorted(configs)
    card = Tables.of(tmp_path).card("cpu")
    assert card is not None
    rates = Tables.of(tmp_path).rates(card)
    assert rates.evidence is Evidence.MEASURED
    assert rates.error > 0


def test_a_shape_that_does_not_exist_is_named_with_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--shapes nothing: is no shape; there are: cpu-wide"):
        measure.measure_rates(tmp_path / "x.json", ("nothing",), "cpu")
