"""A request's predicted latencies beside those that it then has, on the scheduler itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from atom.advisor.load import DrawnLoad, RateLoad
from atom.advisor.operations import model_work
from atom.advisor.rates import Tables
from atom.advisor.room import Division, plan_form
from atom.advisor.step_time import StepTimer
from atom.advisor.virtual.executor import VirtualClock, VirtualExecutor
from atom.config import SchedulerConfig
from atom.model_engine.front.admission.expectations import Expectations, Expected
from atom.model_engine.outlook.outlook import Outlook
from atom.model_engine.outlook.prediction import Ahead, Bounds, Typical, predict
from atom.model_engine.outlook.step_costs import Costs
from atom.model_engine.request import Request
from atom.model_engine.step_pipeline import StepPipeline
from atom.model_engine.wire.engine_protocol import RankStats
from atom.model_engine.wire.outlook_body import Limit
from atom.sampling_params import SamplingParams
from atom.sizing import ModelFacts
from atom.sizing.cards import CARDS
from benchmarks.workloads.shapes import SHAPES

FACTS = ModelFacts.from_hf_config(SHAPES["qwen3-8b"])
DIVISION = Division(FACTS, CARDS["H200"], 1)
TIMER = StepTimer(
    model_work(FACTS, DIVISION.kv, DIVISION.sharding),
    CARDS["H200"],
    Tables.packaged().rates(CARDS["H200"]),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """What was predicted when a request came, and its first token's seconds."""

    expected: Expected
    ttft: float


class Served:
    """An engine of virtual time, asked for its prediction whenever a request comes."""

    def __init__(self, rows: int) -> None:
        form = plan_form(DIVISION, rows, 8192)
        self.scheduler, self.clock = form.scheduler(), VirtualClock()
        config = SchedulerConfig(max_num_seqs=rows)
        self.outlook = Outlook(config)
        executor = VirtualExecutor(TIMER.seconds, self.clock)
        self.pipeline = StepPipeline(self.scheduler, executor, depth=1, outlook=self.outlook)
        self.unanswered: set[int] = set()
        self.arrived: dict[int, float] = {}
        self.first: dict[int, float] = {}
        self.expectations = Expectations(self.told, lambda: len(self.unanswered))

    def told(self) -> dict[int, RankStats]:
        return {0: RankStats(0, 1, self.scheduler.stats(), self.pipeline.outlook())}

    def serve(self, load: DrawnLoad) -> list[Pair]:
        pairs: dict[int, Expected | None] = {}
        count, place = len(load.dues), 0
        while place < count or self.pipeline.has_work():
            due = load.dues[place].at_seconds if place < count else float("inf")
            if due <= self.clock.now or not self.pipeline.has_work():
                if not self.pipeline.has_work():
                    self.pipeline.pause(self.clock.now)
                self.clock.advance_to(due)
                pairs[place] = self.expectations.now()
                self.add(place, load)
                place += 1
            else:
                self.step()
        return [
            Pair(expected, self.first[number] - self.arrived[number])
            for number, expected in pairs.items()
            if expected is not None
        ]

    def add(self, number: int, load: DrawnLoad) -> None:
        prompt, outputs = load.prompt(number), load.output_tokens(number)
        self.arrived[number] = load.dues[number].at_seconds
        self.unanswered.add(number)
        params = SamplingParams(max_tokens=outputs, ignore_eos=True)
        self.pipeline.add(
            Request(
                id=number,
                prompt_token_ids=prompt,
                params=params,
                max_total_tokens=len(prompt) + outputs,
                arrive_time=self.arrived[number],
            )
        )

    def step(self) -> None:
        result = self.pipeline.step(self.clock.now)
        for number in [] if result is None else result.request_ids.tolist():
            if number in self.unanswered:
                self.unanswered.remove(number)
                self.first[number] = self.clock.now


def served(rate: float, lengths: tuple[int, int], rows: int, count: int = 200) -> list[Pair]:
    load = RateLoad(rate=rate, input_tokens=lengths[0], output_tokens=lengths[1], spread=0.3)
    return Served(rows).serve(DrawnLoad(load, count, rate))[count // 10 :]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("rate", "lengths", "rows", "most_error"),
    [
        (0.5, (2000, 100), 64, 0.35),  # idle: the own prompt's length is not known
        (8.0, (2000, 100), 64, 0.40),
        (20.0, (2000, 200), 64, 0.25),  # over: slots are short
        (20.0, (500, 300), 32, 0.25),
        (8.0, (6000, 20), 256, 0.45),  # over: prompts are computed one after the other
    ],
)
def test_first_tokens_come_about_when_they_were_predicted(
    rate: float, lengths: tuple[int, int], rows: int, most_error: float
) -> None:
    pairs = served(rate, lengths, rows)
    assert len(pairs) > 100
    errors = [abs(each.expected.ttft_seconds / each.ttft - 1) for each in pairs]
    assert float(np.median(errors)) <= most_error
    predicted = float(np.median([each.expected.ttft_seconds for each in pairs]))
    seen = float(np.median([each.ttft for each in pairs]))
    assert predicted == pytest.approx(seen, rel=0.35)


def test_steps_after_which_nothing_is_left_are_learned_from() -> None:
    """A prompt's only step is the last one: prefill pods and embeddings at low loads."""
    server = Served(16)
    load = DrawnLoad(RateLoad(rate=0.05, input_tokens=500, output_tokens=1, spread=0.3), 60, 3)
    pairs = server.serve(load)
    assert len(pairs) > 40
    errors = [abs(each.expected.ttft_seconds / each.ttft - 1) for each in pairs[10:]]
    assert float(np.median(errors)) < 0.3


def test_a_full_server_names_its_slots_and_an_idle_one_nothing() -> None:
    full = served(30.0, (500, 300), 32)
    assert {each.expected.limit for each in full[len(full) // 2 :]} == {"sequences"}
    idle = served(0.2, (500, 30), 32)
    assert "sequences" not in {each.expected.limit for each in idle}


def test_a_burst_that_no_step_has_seen_yet_counts() -> None:
    engine = Served(64)
    engine.serve(DrawnLoad(RateLoad(rate=5.0, input_tokens=1000, output_tokens=20), 30, 5.0))
    before = engine.expectations.now()
    engine.unanswered = set(range(100))
    after = engine.expectations.now()
    assert before is not None
    assert after is not None
    assert after.ttft_seconds > 20 * before.ttft_seconds
    engine.unanswered = set()
    assert engine.expectations.now() == before


COSTS = Costs(0.005, 1e-5, 1e-5)
TYPICAL = Typical(prompt_tokens=1000.0, output_tokens=100.0, held_tokens=1050.0, step_tokens=50.0)
BOUNDS = Bounds(8192, 0.3)


def test_the_slowest_resource_is_the_limit() -> None:
    free = Ahead(decodes=10, pending=5, waiting=5, prompt_tokens=5000.0, free_rows=50)
    blocks = Ahead(10, 5, 5, 5000.0, free_rows=50, free_tokens=1000.0)
    slots = Ahead(10, 5, 5, 5000.0, free_rows=0)
    found = [predict(each, COSTS, TYPICAL, BOUNDS) for each in (Ahead(), free, blocks, slots)]
    assert [each.limit for each in found] == [
        Limit.NOTHING, Limit.COMPUTE, Limit.KV_CACHE, Limit.SEQUENCES
    ]  # fmt: skip
    assert found[0].ttft_seconds < found[1].ttft_seconds < found[3].ttft_seconds
    assert tuple(Limit) == ("nothing", "compute", "sequences", "kv_cache")


@pytest.mark.parametrize("more", ["decodes", "waiting", "prompt_tokens"])
def test_more_work_never_brings_a_token_sooner(more: str) -> None:
    seen = 0.0
    for count in (0, 1, 4, 16, 64, 256):
        values = {
            "decodes": 4,
            "pending": count,
            "waiting": 0,
            "prompt_tokens": 0.0,
            "free_rows": 8,
        }
        ahead = Ahead(**{**values, more: count})  # type: ignore[arg-type]
        found = predict(ahead, COSTS, TYPICAL, BOUNDS)
        assert found.ttft_seconds >= seen
        assert found.ttft_seconds < float("inf")
        seen = found.ttft_seconds if more != "decodes" else 0.0
