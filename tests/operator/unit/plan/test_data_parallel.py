"""Copies of a model in one pod: as many devices, as much capacity, one address."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.children.engine_container import engine_container
from atom_operator.constants import Reason
from atom_operator.domain import Capacity
from atom_operator.plan.scaling import sequences_held
from atom_operator.plan_report import facts
from atom_operator.validation.rules import validate
from tests.support.operator.builders_operator import parsed, plan

AMD = {"type": "amd", "product": "MI300X"}
MODEL = {"source": "hf://Qwen/Qwen3-8B"}


def copies(number: int, **changes: Any) -> Any:
    return plan(model=MODEL, accelerator=AMD, parallelism={"data": number}, **changes)


def capacity(number: int) -> Capacity:
    found = copies(number).capacity.capacity
    assert isinstance(found, Capacity)
    return found


def test_a_replica_holds_as_many_times_more() -> None:
    one, four = capacity(1), capacity(4)
    assert four.kv_tokens == 4 * one.kv_tokens
    assert four.num_blocks == 4 * one.num_blocks
    assert four.max_sequences == 4 * one.max_sequences
    pairs = zip(four.concurrency, one.concurrency, strict=True)
    assert all(row.sequences == 4 * single.sequences for row, single in pairs)
    # Each device has a whole copy.
    assert four.weights_bytes == one.weights_bytes
    assert four.kv_bytes_per_token == one.kv_bytes_per_token


def test_a_pod_asks_for_the_devices_and_the_host_of_every_copy() -> None:
    asked = engine_container(copies(4))["resources"]
    assert asked["limits"] == {"amd.com/gpu": "4"}
    assert asked["requests"] == {"cpu": "8", "memory": "32Gi", "amd.com/gpu": "4"}


def test_the_plan_says_devices_and_copies() -> None:
    device = dict(facts(copies(4)))["device"]
    assert device.startswith("4 x amd.com/gpu per replica for 4 copies")


def test_an_autoscaler_aims_at_what_all_copies_hold() -> None:
    asked = parsed(autoscaling={"maxReplicas": 2, "typicalContextTokens": 1000}).autoscaling
    assert asked is not None
    one, four = copies(1, engine={"maxNumSeqs": 8}), copies(4, engine={"maxNumSeqs": 8})
    assert sequences_held(asked, one.engine, one.capacity.capacity) == 8
    assert sequences_held(asked, four.engine, four.capacity.capacity) == 32


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accelerator": {"type": "cpu"}, "parallelism": {"data": 2}}, "are for GPUs"),
        (
            {"accelerator": AMD, "parallelism": {"data": 2, "tensor": 2, "nodes": 2}},
            "need it on one node",
        ),
        ({"accelerator": AMD, "parallelism": {"data": 4, "tensor": 4}}, "set at most 2"),
        (
            {"accelerator": AMD, "parallelism": {"data": 18, "nodes": 2, "expert": True}},
            "more than the 8 of each of 2 nodes; set at most 16",
        ),
    ],
    ids=["on a cpu", "over nodes", "more than a node has", "more than the nodes have"],
)
def test_what_no_pod_could_hold_is_refused(changes: dict[str, Any], words: str) -> None:
    (problem,) = validate(parsed(**changes))
    assert problem.field == "spec.parallelism.data"
    assert words in problem.message
    assert "raise spec.replicas" in problem.message


def test_the_engines_flag_leads_to_the_field() -> None:
    (problem,) = validate(parsed(engine={"extraArgs": ["--data-parallel-size=2"]}))
    assert problem.reason is Reason.RESERVED_ARGUMENT
    assert "use spec.parallelism.data" in problem.message
