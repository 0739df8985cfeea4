"""Launches of steps: the steps that a graph holds, and the effect of the host's time on first
tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.advisor.launches import Launches, captured_buckets
from atom.advisor.rates import ASSUMED, Tables
from atom.advisor.simulation import Fleet, simulate
from atom.advisor.step_shape import Chunk, StepShape
from atom.model_engine.runner.pages.layer_caches import CacheShape
from atom.model_engine.runner.warm_up import decode_batch
from atom.sizing import ModelFacts, RunLimits
from atom.sizing.cards import CARDS, Vendor
from benchmarks.advice.h200_truth import Predictor, load_at, recorded
from benchmarks.advice.loads import EqualLoad
from benchmarks.workloads.shapes import SHAPES

LIMITS = RunLimits(block_size=16, max_num_seqs=256, max_model_len=8192, max_num_batched_tokens=8192)
PAIRS = Path("benchmarks/advice/h200_pairs.json")


def facts(name: str) -> ModelFacts:
    return ModelFacts.from_hf_config(SHAPES[name])


def beside(decodes: int, *prompts: int) -> StepShape:
    contexts = np.full(decodes, 600, dtype=np.int64)
    chunks = tuple(Chunk(0, tokens) for tokens in prompts)
    return StepShape(contexts, decodes, chunks, decodes + len(chunks))


def launches(name: str) -> Launches:
    return Launches(captured_buckets(facts(name), LIMITS, Vendor.NVIDIA, 1), 0.001, 0.02)


@pytest.mark.parametrize(
    ("name", "step", "padding"),
    [
        ("qwen3-4b", beside(5, 512), 640 - 517),
        ("qwen3-8b", beside(0, 512), 0),
        ("qwen3-8b", beside(5, 512), None),  # 640 tokens keep its device busy for longer
        ("qwen3-0.6b", beside(5, 2048), None),
        ("qwen3-0.6b", beside(300, 64), None),
        ("qwen3-0.6b", beside(7), 0),
    ],
)
def test_a_step_that_no_graph_holds_keeps_the_host(
    name: str, step: StepShape, padding: int | None
) -> None:
    launch = launches(name).of_step(step)
    assert (launch.beside > 0) == (padding is None)
    assert launch.shape.padding == (padding or 0)
    assert (launch.before > 0) == bool(step.chunks)


@given(decodes=st.integers(0, 20), chunk=st.integers(1, 1024))
def test_graphs_hold_the_batches_that_the_engine_replays(decodes: int, chunk: int) -> None:
    batch = decode_batch([5] * decodes, CacheShape(256, 16, 1), chunk=chunk)
    buckets = captured_buckets(facts("qwen3-8b"), LIMITS, Vendor.NVIDIA, 1)
    launch = Launches(buckets, 0.0, 1.0).of_step(StepShape.of(batch))
    held = next((each for each in buckets if each.holds(batch)), None)
    assert (launch.beside == 0) == (held is not None)
    if held is not None:
        assert launch.shape.tokens + launch.shape.padding == held.tokens


def test_answers_beside_prompts_are_launched_apart_unless_a_graph_holds_the_step() -> None:
    known = replace(launches("qwen3-8b"), mixed=0.004)
    assert known.of_step(beside(0, 4096)).beside == pytest.approx(0.02)
    assert known.of_step(beside(3, 4096)).beside == pytest.approx(0.024)
    assert known.times(2.0).of_step(beside(3, 4096)).beside == pytest.approx(0.048)
    assert known.of_step(beside(3, 64)).beside == 0


def test_engines_without_graphs_of_prompts_launch_every_prompt() -> None:
    drafting = replace(LIMITS, num_speculative_tokens=2)
    assert not captured_buckets(facts("qwen3-8b"), LIMITS, Vendor.AMD, 1)
    assert not captured_buckets(facts("qwen3-8b"), drafting, Vendor.NVIDIA, 1)
    form = predictor("qwen3-8b").form
    assert Launches.of(form, Vendor.CPU, 1, ASSUMED.seconds) == Launches()
    assert Launches.of(form, Vendor.AMD, 1, ASSUMED.seconds).op_by_op > 0.01


def predictor(name: str) -> Predictor:
    return Predictor.of(facts(name), CARDS["H200"], Tables.packaged())


def test_tokens_wait_for_the_launches_of_the_step_behind_them() -> None:
    """Two prompts that come in two steps: the first one's token is read after the second step was
    launched."""
    found = predictor("qwen3-8b")
    load = EqualLoad.at_rate(2, 1e3, (2048, 2))
    slow = Launches((), 0.0, 0.5)
    with_host = simulate(Fleet(found.form, found.timer.seconds, launches=slow), load)
    without = simulate(Fleet(found.form, found.timer.seconds), load)
    # Each waits for its own launch, and for one more.
    assert all(each.ttft >= 1.0 for each in with_host.served if each)
    assert all(each.ttft < 0.2 for each in without.served if each)


def test_recorded_first_tokens_are_nearer_with_the_launches() -> None:
    """The 8B at a tenth of its rate: prompts beside answers, which no graph of it holds."""
    pairs = json.loads(PAIRS.read_text(encoding="utf-8"))["pairs"]
    (seen,) = (each for each in pairs if (each["model"], each["share"]) == ("qwen3-8b", 0.1))
    found = predictor(seen["model"])
    load = load_at(seen["rate"], tuple(seen["in, out"]))
    ignored = simulate(Fleet(found.form, found.timer.seconds), load)
    ttft = float(np.median([each.ttft for each in ignored.served if each]))
    told = float(found.predict(load).values["ttft"][len(load.dues) // 2])  # type: ignore[index]
    assert abs(told / seen["seen"]["ttft p50"] - 1) < abs(ttft / seen["seen"]["ttft p50"] - 1) - 0.1


def test_recorded_pairs_are_predicted_again_without_a_card(tmp_path: Path) -> None:
    document = json.loads(PAIRS.read_text(encoding="utf-8"))
    document["pairs"] = document["pairs"][4:5]
    (tmp_path / "pairs.json").write_text(json.dumps(document))
    slower, told = (
        next(recorded(tmp_path / "pairs.json", Tables.packaged(), launch))
        for launch in (2e-3, None)
    )
    assert told["seen"] == slower["seen"]
    assert told["predicted"]["ttft p50"] < slower["predicted"]["ttft p50"]
