"""Predicted steps: more work never takes less, and rates are read as they were written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.advisor.errors import AdviceError
from atom.advisor.operations import Operation, model_work
from atom.advisor.rates import ASSUMED, Curve, Evidence, Tables, read_table
from atom.advisor.step_shape import StepShape
from atom.advisor.step_time import StepTimer, ideal_seconds
from atom.sizing import KV_ELEMENTS, ModelFacts, Sharding
from atom.sizing.cards import CARDS, Precision
from benchmarks.workloads.shapes import SHAPES

NAMES = ("qwen3-8b", "qwen3-30b-a3b", "qwen3-next-80b-a3b", "gpt-oss-20b-mxfp4")
FACTS = {name: ModelFacts.from_hf_config(SHAPES[name]) for name in NAMES}

TABLE: dict[str, Any] = {
    "protocol": 1,
    "card": "MI300X",
    "bytes_per_second": 5.3e12,
    "flops": {"wide": 1.3074e15},
    "efficiencies": {"matrices": [[1, 0.5], [1024, 0.8]]},
    "seconds": {"step": 0.0001, "layer": 0.00001},
    "error": {"median": 0.03, "p90": 0.08},
    "source": {
        "date": "2026-01-01",
        "device": "a card",
        "versions": {},
        "shapes": ["a shape"],
        "steps": 100,
    },
}


def timer(name: str, card: str = "MI300X", ranks: int = 1) -> StepTimer:
    return StepTimer(
        model_work(FACTS[name], KV_ELEMENTS["bf16"], Sharding(ranks)), CARDS[card], ASSUMED
    )


@given(
    name=st.sampled_from(NAMES),
    card=st.sampled_from(sorted(CARDS)),
    rows=st.integers(1, 300),
    context=st.integers(1, 20_000),
    more=st.integers(0, 500),
)
def test_more_rows_and_longer_contexts_never_take_less(
    name: str, card: str, rows: int, context: int, more: int
) -> None:
    step = timer(name, card)
    base = step.seconds(StepShape.decodes(rows, context))
    assert 0 < base <= step.seconds(StepShape.decodes(rows, context + more))
    assert base <= step.seconds(StepShape.decodes(rows + more, context))


@given(
    name=st.sampled_from(NAMES),
    tokens=st.integers(1, 8_000),
    computed=st.integers(0, 20_000),
    more=st.integers(0, 8_000),
)
def test_longer_chunks_and_longer_histories_never_take_less(
    name: str, tokens: int, computed: int, more: int
) -> None:
    step = timer(name)
    base = step.seconds(StepShape.prompt(tokens, computed))
    assert base <= step.seconds(StepShape.prompt(tokens, computed + more)) * (1 + 1e-9)
    assert base <= step.seconds(StepShape.prompt(tokens + more, computed)) * (1 + 1e-9)


@given(name=st.sampled_from(NAMES), rows=st.integers(1, 300), context=st.integers(1, 20_000))
def test_no_step_is_faster_than_the_peaks_allow(name: str, rows: int, context: int) -> None:
    step, shape = timer(name), StepShape.decodes(rows, context)
    ideal = sum(ideal_seconds(work, step.card) for work in step.work.of_step(shape))
    assert step.seconds(shape) > ideal


def test_a_factor_multiplies_every_step() -> None:
    step, shape = timer("qwen3-8b"), StepShape.decodes(4, 1000)
    assert replace(step, factor=1.5).seconds(shape) == pytest.approx(1.5 * step.seconds(shape))


def test_a_curve_ends_at_its_points_and_bends_between_them() -> None:
    curve = Curve(((1.0, 0.25), (16.0, 0.5)))
    assert [curve.share(width) for width in (0.5, 1, 16, 99)] == [0.25, 0.25, 0.5, 0.5]
    assert 1 / curve.share(4) == pytest.approx(3.0)  # half-way in the logarithm


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "table.json"
    path.write_text(json.dumps({**TABLE, **changes}))
    return path


def test_a_card_has_the_evidence_of_its_table(tmp_path: Path) -> None:
    write(tmp_path)
    tables = Tables.of(tmp_path)
    measured = tables.rates(CARDS["MI300X"])
    assert (measured.evidence, measured.error) == (Evidence.MEASURED, 0.08)
    assert measured.share(Operation.MATRICES, 1) == 0.5
    borrowed = tables.rates(CARDS["MI355X"])
    assert (borrowed.evidence, borrowed.of) == (Evidence.TRANSPORTED, "MI300X")
    other = tables.rates(CARDS["H200"])
    assert (other.evidence, other.of) == (Evidence.PHYSICS, "")
    assert measured.error < borrowed.error < other.error


def test_sums_of_ranks_that_were_not_measured_widen_the_error(tmp_path: Path) -> None:
    write(tmp_path)
    rates = Tables.of(tmp_path).rates(CARDS["MI300X"], ranks=2)
    assert (rates.evidence, rates.error > 0.08) == (Evidence.TRANSPORTED, True)
    sums = {**TABLE["efficiencies"], "collectives": [[1, 0.5]]}
    write(tmp_path, efficiencies=sums)
    assert Tables.of(tmp_path).rates(CARDS["MI300X"], ranks=2).evidence is Evidence.MEASURED


def test_a_table_describes_a_device_that_no_maker_lists(tmp_path: Path) -> None:
    write(tmp_path, card="cpu", memory_bytes=2**34, flops={"wide": 1e11}, bytes_per_second=1e10)
    card = Tables.of(tmp_path).card("cpu")
    assert card is not None
    assert (card.memory_bytes, card.flops_per_second(Precision.FP8)) == (2**34, 1e11)
    assert Tables.of(tmp_path).card("MI999") is None


def test_the_tables_of_the_package_can_be_read() -> None:
    for name, table in Tables.packaged().by_card.items():
        assert table.source.steps > 0, name


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"protocol": 9}, "protocol 9 is not 1"),
        ({"efficiencies": {"magic": [[1, 1]]}}, "no operation 'magic'"),
        ({"efficiencies": {"head": []}}, "efficiencies.head"),
        ({"efficiencies": {"head": [[8, 1], [1, 1]]}}, "rows must rise"),
        ({"efficiencies": {"head": [[1, 0]]}}, "shares must be above 0"),
        ({"flops": {"fp8": 1.0}}, "wide is missing"),
        ({"bytes_per_second": 0}, "must be above 0"),
        ({"seconds": {"hour": 1}}, "hour"),
        ({"card": None}, "card"),
    ],
)
def test_a_damaged_table_is_named_with_its_field_and_a_remedy(
    changes: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    path = write(tmp_path, **changes)
    with pytest.raises(AdviceError) as raised:
        read_table(path)
    message = str(raised.value)
    assert str(path) in message
    assert fault in message
    assert "measure" in message or "benchmarks.gpu --rates" in message
