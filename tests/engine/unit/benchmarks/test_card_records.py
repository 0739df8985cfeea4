"""A run on a card is kept whole, and predicted again by tables that its shape had no part in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from atom.advisor.rates import ASSUMED, Rates, Tables
from atom.advisor.room import Division
from atom.advisor.step_shape import Chunk, StepShape
from atom.advisor.step_time import StepTimer
from atom.sizing.cards import CARDS
from benchmarks.advice.card_records import (
    Pair,
    choices,
    held_up,
    kept,
    launched,
    predicted,
    timed,
)
from benchmarks.advice.h200_truth import Predictor, Run, Served, Share, figures, load_at, pair
from benchmarks.advice.h200_truth import started as started_engine
from benchmarks.advice.records import Form, QuietSteps, SeenLoad, StepRecord, append, read
from benchmarks.step_rates.recorded_steps import RecordedEngine
from benchmarks.workloads.shapes import write_shape

CARD = CARDS["H200"]
TRUE: Rates = replace(ASSUMED, error=0.0)
SHAPES = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b")


def quiet(name: str) -> QuietSteps:
    """The steps of a shape, as long as TRUE says."""
    form = Form(name)
    timer: StepTimer = Predictor.by_rates(Division(Served(form).facts, CARD, 1), TRUE).timer
    shapes = [
        StepShape.decodes(rows, context) for rows in (1, 8, 64, 256) for context in (64, 2048)
    ]
    shapes += [StepShape.prompt(tokens) for tokens in (64, 512, 2048, 8192)]
    prepare = {True: TRUE.seconds.prepare, False: 0.0}
    steps = [record(each, timer.seconds(each) + prepare[bool(each.chunks)]) for each in shapes]
    return QuietSteps(form, CARD.name, tuple(steps))


def record(shape: StepShape, seconds: float) -> StepRecord:
    context = round(float(shape.contexts.mean())) if len(shape.contexts) else 0
    chunks = tuple((each.computed, each.tokens) for each in shape.chunks)
    return StepRecord(len(shape.contexts), context, chunks, seconds, 0.0, seconds)


def seen_load(form: Form, seen: dict[str, float | None], share: float = 0.1) -> SeenLoad:
    return SeenLoad(form, CARD.name, (512, 32), share, 10.0, seen, (), ())


def test_a_load_is_predicted_by_the_steps_of_other_shapes() -> None:
    division = Division(Served(Form("qwen3-4b")).facts, CARD, 1)
    seen = figures(Predictor.by_rates(division, TRUE).predict(load_at(10.0, (512, 32))))
    own = quiet("qwen3-4b")
    spoiled = QuietSteps(own.form, own.card, tuple(record(each.shape, 9.0) for each in own.steps))
    records = [quiet(each) for each in SHAPES if each != "qwen3-4b"]
    steps = list(timed([*records, spoiled]))
    (found,) = predicted(steps, [seen_load(Form("qwen3-4b"), dict(seen))])
    for key in ("ttft p50", "itl p50", "requests/s"):
        assert found.predicted[key] == pytest.approx(seen[key], rel=0.2)


def test_a_choice_is_as_good_as_the_form_that_was_seen_to_be_best() -> None:
    def answer(form: Form, seen: float, told: float) -> Pair:
        keys = ("ttft p90", "tpot p90", "goodput/s")
        return Pair(seen_load(form, {}), dict.fromkeys(keys, seen), dict.fromkeys(keys, told))

    plain, fp8 = Form("qwen3-8b"), Form("qwen3-8b", "fp8")
    alone = answer(Form("qwen3-4b"), 1.0, 1.0)
    found = {
        name.split(": ")[1]: (told, best, worse)
        for name, told, best, worse in choices(
            [answer(plain, 2.0, 1.0), answer(fp8, 1.0, 3.0), alone]
        )
    }
    assert found == {
        "ttft p90": ("qwen3-8b", "qwen3-8b fp8", 2.0),
        "tpot p90": ("qwen3-8b", "qwen3-8b fp8", 2.0),
        "goodput/s": ("qwen3-8b fp8", "qwen3-8b", 2.0),
    }


def test_the_host_of_a_load_is_read_from_a_step_that_waited_for_no_other(tmp_path: Path) -> None:
    """Prompts beside answers, behind answers alone and behind other prompts; those that a graph
    holds, or that have no answers beside them, tell nothing of such launches."""

    def step(decodes: int, prompt: int, host: float) -> StepRecord:
        return StepRecord(decodes, 600, ((0, prompt),) if prompt else (), 0.001, host, 0.001)

    answers = step(3, 0, 0.0001)
    hosts = [0.021, 0.022, 0.035]
    steps = [answers, step(0, 2048, 0.001), answers, step(3, 64, 0.002)]
    for host in hosts:
        steps += [answers, step(3, 2048, host), step(4, 2048, 0.06)]
    load = msgspec.structs.replace(seen_load(Form("qwen3-8b"), {}), steps=tuple(steps))
    assert launched(load) == (answers, step(3, 2048, 0.022))
    (told,) = held_up([load, seen_load(Form("qwen3-8b"), {})])
    assert (told.host_seconds, told.is_of_host, told.host_work.mixed) == (0.022, True, 36)
    append(tmp_path / "run.jsonl.gz", kept(load))
    (short,) = read([tmp_path / "run.jsonl.gz"])
    assert isinstance(short, SeenLoad)
    assert launched(short) == launched(load)
    assert len(short.steps) == 2


def test_a_quiet_step_with_answers_tells_no_launches() -> None:
    """Its host waited for the launches of many prompts before it."""
    own = quiet("qwen3-8b")
    mixed = StepRecord(16, 1025, ((0, 8192),), 0.2, 0.11, 0.2)
    waited = msgspec.structs.replace(mixed, host_seconds=0.19)
    steps = list(timed([msgspec.structs.replace(own, steps=(*own.steps, mixed, waited))]))
    assert len(steps) == len(own.steps) + 1
    assert (steps[-1].seconds, steps[-1].host_seconds) == (0.2, 0.0)


def test_a_record_that_was_cut_leaves_those_before_it(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    append(path, quiet("qwen3-0.6b"))
    whole = path.stat().st_size
    append(path, seen_load(Form.of("qwen3-8b:fp8:2"), {"ttft p50": float("inf")}))
    both = list(read([path]))
    assert both[0] == quiet("qwen3-0.6b")
    assert isinstance(both[1], SeenLoad)
    assert both[1].form.label == "qwen3-8b fp8 on 2"
    assert both[1].seen == {"ttft p50": None}, "it did not end"
    path.write_bytes(path.read_bytes()[: whole + 30])
    assert list(read([path])) == both[:1]


def test_a_step_is_read_as_it_was_recorded() -> None:
    contexts = np.full(3, 70, dtype=np.int64)
    shape = StepShape(contexts, 3, (Chunk(16, 32), Chunk(0, 8)), 5)
    found = record(shape, 0.5).shape
    assert (found.contexts.tolist(), found.chunks, found.sampled) == ([70] * 3, shape.chunks, 5)


def test_each_request_and_step_of_a_load_is_kept(tmp_path: Path) -> None:
    write_shape("tiny", tmp_path)
    served, path = Served(Form("tiny")), tmp_path / "run.jsonl.gz"
    engine = started_engine(served, tmp_path, "cpu")
    run = Run("cpu", CARD, Tables.packaged(), 0.0, path)
    asked = Share((24, 5), 0.1), 1000.0
    found = pair(run, served, RecordedEngine(engine), asked)
    engine.close()
    (kept,) = read([path])
    assert isinstance(kept, SeenLoad)
    assert {key: value for key, value in kept.seen.items() if value is not None} == {
        key: value for key, value in found["seen"].items() if value != float("inf")
    }
    for request in kept.requests:
        times = (request.arrived, request.entered, *request.tokens)
        assert list(times) == sorted(times)
        assert len(request.tokens) == 5
    assert sum(tokens for step in kept.steps for _, tokens in step.chunks) == 24 * found["requests"]
    assert all(step.begun >= 0 for step in kept.steps)
