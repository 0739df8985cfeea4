"""Steps beside a measured table: the ratio shows a device that is slower than its table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from atom.advisor.launches import NO_LAUNCHES
from atom.advisor.operations import model_work
from atom.advisor.rates import Tables
from atom.advisor.step_shape import Chunk, StepShape
from atom.advisor.step_time import StepTimer
from atom.entrypoints.outlook.step_watch import StepWatch, launches_of, measured_timer
from atom.model_engine.wire.outlook_body import StepTotals
from atom.model_engine.wire.step_window import total_steps
from atom.sizing import KV_ELEMENTS, ModelFacts, Sharding
from atom.sizing.cards import CARDS, card_of_device
from benchmarks.workloads.shapes import SHAPES

FACTS = ModelFacts.from_hf_config(SHAPES["qwen3-8b"])
CARD = CARDS["H200"]
TIMER = StepTimer(
    model_work(FACTS, KV_ELEMENTS["bf16"], Sharding(1)), CARD, Tables.packaged().rates(CARD)
)


def steps_of(count: int, times: float = 1.0) -> StepTotals:
    """Steps of 32 rows, of which each tenth has a prompt, that take so many times the table's."""
    plain, prompts = count - count // 10, count // 10
    decodes = StepShape.decodes(32, 1000)
    mixed = StepShape(decodes.contexts, 32, (Chunk(0, 800),), 33)
    seconds = plain * TIMER.seconds(decodes) + prompts * TIMER.seconds(mixed)
    return StepTotals(
        steps=count,
        seconds=times * seconds,
        rows=32 * count,
        context_tokens=32_000 * count,
        prompt_tokens=800 * prompts,
        prompt_steps=prompts,
    )


@pytest.mark.parametrize("times", [0.5, 1.0, 1.4, 3.0])
def test_the_ratio_is_how_much_longer_steps_take(times: float) -> None:
    now = [0.0]
    watch = StepWatch(TIMER, lambda: now[0])
    assert watch.ratio(StepTotals()) is None
    now[0] = 30.0
    assert watch.ratio(steps_of(500, times)) == pytest.approx(times, rel=0.01)


def test_only_the_last_minute_counts() -> None:
    now = [0.0]
    watch = StepWatch(TIMER, lambda: now[0])
    watch.ratio(StepTotals())
    total = StepTotals()
    for number in range(20):
        now[0] += 15.0
        total = total_steps([total, steps_of(100, 1.0 if number < 10 else 2.0)])
        ratio = watch.ratio(total)
    assert ratio == pytest.approx(2.0, rel=0.01)


def test_nothing_is_said_of_too_few_steps_nor_across_a_restart() -> None:
    now = [0.0]
    watch = StepWatch(TIMER, lambda: now[0])
    watch.ratio(steps_of(1000))
    now[0] = 15.0
    assert watch.ratio(steps_of(1010)) is None
    now[0] = 30.0
    assert watch.ratio(steps_of(100)) is None, "a rank was lost: its steps are gone"
    now[0] = 45.0
    assert watch.ratio(steps_of(200)) == pytest.approx(1.0, rel=0.01)


def config_and_report(device: str, **changes: Any) -> tuple[Any, Any]:
    config = SimpleNamespace(
        model=SimpleNamespace(facts=FACTS),
        parallel=SimpleNamespace(tensor_parallel_size=changes.pop("ranks", 1)),
        speculative=changes.pop("speculative", None),
    )
    values = {"dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "on_cpu": False, **changes}
    return config, SimpleNamespace(device=device, **values)


def test_only_a_table_that_was_measured_on_the_card_is_compared() -> None:
    tables = Tables.packaged()
    timer = measured_timer(*config_and_report("NVIDIA H200"), tables)
    assert timer is not None
    shape = StepShape.decodes(8, 500)
    assert timer.seconds(shape) == TIMER.seconds(shape)
    small = measured_timer(
        *config_and_report("NVIDIA H200", kv_cache_dtype="float8_e4m3fn"), tables
    )
    assert small is not None
    assert small.seconds(StepShape.decodes(64, 8000)) < timer.seconds(StepShape.decodes(64, 8000))
    for device in ("NVIDIA H100 80GB HBM3", "AMD Instinct MI300X", "cpu (test)", "Strange"):
        assert measured_timer(*config_and_report(device), tables) is None
    pair = measured_timer(*config_and_report("NVIDIA H200", ranks=2), tables)
    assert pair is not None
    assert pair.seconds(shape) < timer.seconds(shape)
    assert measured_timer(*config_and_report("NVIDIA H200", speculative=object()), tables) is None


def test_steps_that_wait_for_their_launches_are_no_sick_device() -> None:
    """The table's own steps, but those with prompts take as long as the host launches 36 layers."""
    config, report = config_and_report(
        "NVIDIA H200", max_num_seqs=256, max_model_len=8192, max_num_batched_tokens=8192
    )
    config.cache = SimpleNamespace(block_size=16)
    config.execution = SimpleNamespace(enforce_eager=False)
    launches = launches_of(TIMER, config, report)
    assert launches.op_by_op > 0.015
    total = steps_of(500)
    decodes = StepShape.decodes(32, 1000)
    mixed = StepShape(decodes.contexts, 32, (Chunk(0, 800),), 33)
    launch = launches.of_step(mixed)
    slower = launch.alone(TIMER.seconds(mixed)) - TIMER.seconds(mixed)
    assert slower > 0
    total = msgspec.structs.replace(total, seconds=total.seconds + 50 * slower)
    for known, expected in ((launches, 1.0), (NO_LAUNCHES, total.seconds / steps_of(500).seconds)):
        now = [0.0]
        watch = StepWatch(TIMER, lambda now=now: now[0], known)  # type: ignore[misc]
        watch.ratio(StepTotals())
        now[0] = 30.0
        assert watch.ratio(total) == pytest.approx(expected, rel=0.01)
    assert launches_of(None, config, report) == NO_LAUNCHES


def test_a_watch_without_a_table_says_nothing() -> None:
    assert StepWatch().ratio(steps_of(1000)) is None


def test_cards_are_known_by_the_names_of_their_drivers() -> None:
    names = {"AMD Instinct MI300X VF": "MI300X", "NVIDIA_H200": "H200", "Radeon": None}
    for name, card in names.items():
        found = card_of_device(name)
        assert (None if found is None else found.name) == card
