"""spec.cache.kv.hostMemory: the engine gets it, the pod requests it, the plan tells its tokens."""

from __future__ import annotations

from typing import Any

import pytest

from atom.sizing.host_tier import GIB
from atom_operator.children.engine_container import engine_container
from atom_operator.domain import Plan
from atom_operator.plan.learning import learning_key
from atom_operator.plan_report import facts
from atom_operator.validation.defaulting import resolve_options
from atom_operator.validation.engine_limits import validate_tier
from atom_operator.validation.rules import validate
from tests.support.operator.builders_operator import parsed, plan

GPU = {"type": "amd", "product": "MI300X"}
CPU = {"type": "cpu", "memory": "32Gi"}
TIER = {"kv": {"hostMemory": "64Gi"}}


def memory_of(**changes: Any) -> int:
    requests = engine_container(plan(**changes))["resources"]["requests"]
    return int(str(requests["memory"]).removesuffix("Gi"))


def arguments(**changes: Any) -> list[str]:
    return list(engine_container(plan(**changes))["args"])


def key_of(planned: Plan) -> str:
    return learning_key(planned.model.location, planned.engine, planned.accelerator)


@pytest.mark.parametrize(
    ("size", "told"), [("64Gi", "64"), ("1536Mi", "1.5"), ("3000000000", "2.793967724")]
)
def test_the_engine_gets_the_size_in_gib(size: str, told: str) -> None:
    args = arguments(accelerator=GPU, cache={"kv": {"hostMemory": size}})
    assert args[args.index("--kv-offloading-size") + 1] == told
    assert "--kv-offloading-size" not in arguments(accelerator=GPU)


@pytest.mark.parametrize("data", [1, 2])
def test_a_pod_requests_the_tier_once_however_many_copies_share_it(data: int) -> None:
    asked: dict[str, Any] = {"accelerator": GPU, "parallelism": {"data": data}}
    assert memory_of(**asked, cache=TIER) == memory_of(**asked) + 64


def test_the_plan_tells_the_tokens_that_a_tier_holds() -> None:
    planned = plan(accelerator=GPU, cache=TIER)
    capacity = planned.capacity.capacity
    assert capacity is not None
    tokens = 64 * GIB // (capacity.kv_bytes_per_token * 16) * 16
    sequences = tokens // capacity.max_model_len
    told = dict(facts(planned))["KV tier"]
    assert f"= {tokens:,} tokens, {sequences:,} sequences of full length" in told
    assert "KV tier" not in dict(facts(plan(accelerator=GPU)))


def test_on_a_cpu_the_tier_is_a_part_of_the_devices_memory() -> None:
    without, planned = (
        plan(accelerator=CPU),
        plan(accelerator=CPU, cache={"kv": {"hostMemory": "4Gi"}}),
    )
    before, after = without.capacity.capacity, planned.capacity.capacity
    assert before is not None
    assert after is not None
    assert after.device.reserve_bytes == before.device.reserve_bytes + 4 * GIB
    assert memory_of(accelerator=CPU, cache={"kv": {"hostMemory": "4Gi"}}) == memory_of(
        accelerator=CPU
    )
    assert key_of(without) != key_of(planned), "one's measurement corrects no plan of the other"
    assert key_of(plan(accelerator=GPU)) == key_of(plan(accelerator=GPU, cache=TIER))


def test_a_tier_that_is_larger_than_the_cpus_memory_is_refused() -> None:
    verdict = plan(accelerator=CPU, cache=TIER).capacity
    assert verdict.fits == "False"


@pytest.mark.parametrize("words", [["--kv-offloading-size", "4"], ["--kv-offloading-size=4"]])
def test_the_flag_is_the_fields_alone(words: list[str]) -> None:
    problems = validate(parsed(engine={"extraArgs": words}))
    assert any("spec.cache.kv.hostMemory" in str(each) for each in problems)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"engine": {"prefixCaching": False}}, "spec.engine.prefixCaching is false"),
        ({"parallelism": {"tensor": 16, "nodes": 2}}, "share no memory of a host"),
    ],
)
def test_options_without_a_tier_are_told_by_the_field(
    changes: dict[str, Any], told: str | None
) -> None:
    options = resolve_options(parsed(cache=TIER, accelerator=GPU, **changes), image="i")
    problems = list(validate_tier(options, None))
    if told is None:
        assert problems == []
        return
    (problem,) = problems
    assert problem.field == "spec.cache.kv.hostMemory"
    assert told in problem.message
