"""Simulated engines: what holds of any load, and what a load and its targets mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.advisor.engine_form import EngineForm
from atom.advisor.errors import AdviceError
from atom.advisor.load import DrawnLoad, RateLoad, parse_load
from atom.advisor.operations import model_work
from atom.advisor.rates import ASSUMED
from atom.advisor.simulation import Due, Fleet, Outcome, Server, simulate
from atom.advisor.slo import Figures, Metric, figures_of, parse_slo
from atom.advisor.step_time import StepTimer
from atom.advisor.traces import TraceDemand, TraceEntry
from atom.sizing import (
    KV_ELEMENTS,
    DeviceMemory,
    ModelFacts,
    RunLimits,
    Sharding,
    kv_layout,
    plan_kv_cache,
)
from atom.sizing.cards import CARDS
from benchmarks.workloads.shapes import SHAPES
from tests.support.random_search import examples

GIB = 2**30
FACTS = ModelFacts.from_hf_config(SHAPES["qwen3-8b"])
CARD = CARDS["MI300X"]
TIMER = StepTimer(model_work(FACTS, KV_ELEMENTS["bf16"], Sharding(1)), CARD, ASSUMED)
SLO = parse_slo("ttft=2s,itl=50ms@p90")


def form(rows: int = 64, memory_gib: int = 40) -> EngineForm:
    limits = RunLimits(
        block_size=16,
        max_num_seqs=rows,
        max_model_len=8192,
        max_num_batched_tokens=8192,
        prefix_caching=True,
    )
    memory = DeviceMemory(
        total_bytes=memory_gib * GIB,
        utilization=0.9,
        weights_bytes=FACTS.weight_bytes(),
        activation_bytes=GIB,
        overhead_bytes=GIB,
    )
    layout = kv_layout(FACTS, KV_ELEMENTS["bf16"])
    return EngineForm(facts=FACTS, limits=limits, budget=plan_kv_cache(memory, layout, limits))


FORM = form()


def serve(load: DrawnLoad, fleet: Fleet | None = None) -> tuple[Outcome, Figures]:
    outcome = simulate(fleet or Fleet(FORM, TIMER.seconds), load)
    return outcome, figures_of(outcome, SLO, load.prompt_tokens, 1)


def drawn(rate: float, count: int = 24, seed: int = 0, **changes: float) -> DrawnLoad:
    load = RateLoad(rate=rate, input_tokens=1200, output_tokens=24, **changes)  # type: ignore[arg-type]
    return DrawnLoad(load, count, rate, seed)


def mean_latency(outcome: Outcome) -> float:
    return float(np.mean([each.last - each.arrived for each in outcome.served if each]))


@settings(max_examples=examples(10), deadline=None)
@given(
    rate=st.floats(0.5, 40),
    more=st.floats(2, 8),
    seed=st.integers(0, 2**20),
    rows=st.sampled_from((4, 64)),
)
def test_more_requests_a_second_never_wait_less(
    rate: float, more: float, seed: int, rows: int
) -> None:
    fleet = Fleet(form(rows), TIMER.seconds)
    slower = mean_latency(serve(drawn(rate, seed=seed), fleet)[0])
    faster = mean_latency(serve(drawn(rate * more, seed=seed), fleet)[0])
    # Requests that come together may share a step, which is no more than a step's time.
    assert faster >= slower * 0.98 - 0.02


@settings(max_examples=examples(10), deadline=None)
@given(rate=st.floats(1, 40), factor=st.floats(1.2, 4), seed=st.integers(0, 2**20))
def test_slower_steps_never_serve_sooner(rate: float, factor: float, seed: int) -> None:
    load = drawn(rate, seed=seed)
    usual = mean_latency(serve(load)[0])
    slow = Fleet(FORM, replace(TIMER, factor=factor).seconds)
    assert mean_latency(serve(load, slow)[0]) > usual


@settings(max_examples=examples(10), deadline=None)
@given(rate=st.floats(1, 100), engines=st.integers(2, 4), seed=st.integers(0, 2**20))
def test_several_engines_serve_every_request_once(rate: float, engines: int, seed: int) -> None:
    load = drawn(rate, seed=seed)
    outcome, figures = serve(load, Fleet(FORM, TIMER.seconds, engines))
    served = [each for each in outcome.served if each is not None]
    assert len(served) == len(load.dues)
    assert len(outcome.gap_seconds) == sum(each.output_tokens - 1 for each in served)
    assert all(each.ttft > 0 for each in served)
    assert outcome.busy_seconds <= engines * outcome.seconds
    assert 0 <= figures.kv_use[0] <= figures.kv_use[1] <= 1


def test_a_simulation_is_the_same_every_time() -> None:
    first, second = (serve(drawn(5.0, prefix=0.5))[0] for _ in range(2))
    assert first.served == second.served
    assert first.steps == second.steps


def test_prompts_find_the_share_that_is_common_in_the_cache() -> None:
    _, figures = serve(drawn(1.0, count=50, prefix=0.6, prefixes=2))
    whole_blocks = 1200 * 0.6 // 16 * 16 / 1200
    assert figures.reuse.cached == pytest.approx(whole_blocks * 48 / 50, abs=0.02)
    assert serve(drawn(1.0))[1].reuse.cached == 0


def test_a_pool_that_is_too_small_preempts() -> None:
    scarce = form(rows=64, memory_gib=24)
    outcome, _ = serve(drawn(500.0, count=60), Fleet(scarce, TIMER.seconds))
    assert outcome.kv_use[1] > 0.9


def test_a_server_delays_the_first_token_and_no_gap() -> None:
    load = drawn(0.1, count=4)
    alone = serve(load)[0]
    behind = serve(load, Fleet(FORM, TIMER.seconds, server=Server(0.2, 0.05)))[0]
    for one, other in zip(alone.served, behind.served, strict=True):
        assert one is not None
        assert other is not None
        assert other.ttft == pytest.approx(one.ttft + 0.25)
        assert other.tpot == pytest.approx(one.tpot)


def test_a_server_that_takes_one_request_after_another_delays_those_that_come_together() -> None:
    load = drawn(1e6, count=4)  # all at once
    server = Server(0.5, 0.0, accept_seconds=0.2)
    found = simulate(Fleet(FORM, TIMER.seconds, server=server), load)
    first = [each.ttft for each in found.served if each]
    steps = [each.ttft for each in simulate(Fleet(FORM, TIMER.seconds), load).served if each]
    for place in range(4):
        assert first[place] >= 0.5 + 0.2 * place
        assert first[place] <= 0.5 + 0.2 * place + sum(steps)
    alone = simulate(Fleet(FORM, TIMER.seconds, server=server), drawn(0.1, count=1)).served[0]
    plain = simulate(Fleet(FORM, TIMER.seconds), drawn(0.1, count=1)).served[0]
    assert alone is not None
    assert plain is not None
    assert alone.ttft == pytest.approx(plain.ttft + 0.5), "alone, only the whole counts"


def test_an_outcome_that_is_decided_ends_early_and_counts_the_rest_as_unserved() -> None:
    outcome = simulate(Fleet(FORM, TIMER.seconds), drawn(5.0), lambda place, served: place == 3)
    assert outcome.stopped_early
    figures = figures_of(outcome, SLO, 1, 1)
    assert figures.at(Metric.TTFT, 99) == np.inf
    assert figures.kept < 1


@dataclass(frozen=True)
class Talk:
    """A conversation of which every turn waits for the answer before it."""

    dues: Sequence[Due] = (Due(1.0), Due(0.0, (0,), 5.0), Due(0.0, (1,), 5.0))

    def prompt(self, place: int) -> list[int]:
        return list(range(100 * (place + 1)))

    def output_tokens(self, place: int) -> int:
        return 10


def test_a_turn_arrives_after_the_answer_that_it_waits_for() -> None:
    outcome = simulate(Fleet(FORM, TIMER.seconds), Talk())
    first, second, third = outcome.served
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.arrived == 1.0
    assert second.arrived == first.last + 5.0
    assert third.cached == 192  # the whole blocks of the turn before


def test_a_trace_has_its_own_rate_lengths_and_common_blocks() -> None:
    entries = [
        TraceEntry(Due(float(number)), 40, 8, (("", 1), ("", 2 + number % 2)), 16)
        for number in range(10)
    ]
    demand = TraceDemand(entries)
    assert (demand.rate, demand.longest, demand.seconds) == (10 / 9, 48, 9.0)
    assert demand.computed_tokens == (40 + 24 + 8 * 8) / 10
    assert len(demand.notes) == 2
    load, pods = demand.share(3, 2.0)
    assert (pods, load.dues[-1].at_seconds) == (3, 4.5)
    first, second, third = (load.prompt(place) for place in range(3))
    assert first[:16] == second[:16]
    assert first[:32] == third[:32]
    assert first[32:] != third[32:]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rate=3/s,in=4000,out=500", (3.0, 4000, 500, 0.0)),
        ("rate=90/min, in=1, out=2, prefix=0.6", (1.5, 1, 2, 0.6)),
        ("rate=7200/h,in=10,out=10,prefix=0", (2.0, 10, 10, 0.0)),
        ("rate=0.5,in=10,out=10", (0.5, 10, 10, 0.0)),
    ],
)
def test_a_load_is_read(text: str, expected: tuple[float, int, int, float]) -> None:
    load = parse_load(text)
    assert (load.rate, load.input_tokens, load.output_tokens, load.prefix) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rate=3/s",
        "rate=0/s,in=1,out=1",
        "rate=-1/s,in=1,out=1",
        "rate=inf/s,in=1,out=1",
        "rate=3/day,in=1,out=1",
        "rate=3/s,in=0,out=1",
        "rate=3/s,in=1.5,out=1",
        "rate=3/s,in=1,out=1,prefix=1",
        "rate=3/s,in=1,out=1,prefix=x",
        "rate=3/s,in=1,out=1,out=2",
        "rate=3/s,in=1,out=1,colour=2",
    ],
)
def test_a_wrong_load_names_its_part_and_shows_a_right_one(text: str) -> None:
    with pytest.raises(AdviceError, match=r"--load: .*write such as rate=3/s"):
        parse_load(text)


def test_targets_are_read_and_written() -> None:
    assert str(parse_slo("ttft=2s,itl=50ms@p90")) == "ttft=2s,itl=50ms@p90"
    assert str(parse_slo("e2el=1.5s")) == "e2el=1.5s@p90"
    assert parse_slo("tpot=20ms@p99.9").percentile == 99.9


WRONG_TARGETS = (
    *("", "ttft", "ttft=2", "ttft=0s", "ttft=-1s", "ttft=xs", "ttft=infs"),
    *("speed=2s", "ttft=2s,ttft=3s", "ttft=2s@90", "ttft=2s@p0", "ttft=2s@p100", "ttft=2s@pxx"),
)


@pytest.mark.parametrize("text", WRONG_TARGETS)
def test_wrong_targets_name_their_part_and_show_a_right_one(text: str) -> None:
    with pytest.raises(AdviceError, match=r"--slo: .*write such as ttft=2s"):
        parse_slo(text)
