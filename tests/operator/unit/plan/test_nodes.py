"""What is worked out once from nodes is what each AtomDeployment would have worked out alone."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from atom_operator.cluster.partial_objects.listed_nodes import ListedNode
from atom_operator.domain import Manifest, ObjectKey
from atom_operator.domain.nodes import Nodes
from atom_operator.domain.placed_pods import placed_pods
from atom_operator.plan.inventory import (
    PodsAsked,
    device_conditions,
    memory_per_device,
    survey,
)
from tests.support.operator.builders_operator import gpu_node, gpu_pod

_PRODUCTS = ({"amd.com/gpu.device-id": "74a1"}, {"amd.com/gpu.vram": "64G"}, {})
_SELECTORS: tuple[dict[str, str], ...] = ({}, {"disk": "ssd"})


def drawn_nodes(draws: random.Random) -> list[Manifest]:
    return [
        gpu_node(
            f"node-{number}",
            draws.randint(0, 8),
            cordoned=draws.random() < 0.2,
            labels={**draws.choice(_PRODUCTS), **draws.choice(_SELECTORS)},
        )
        for number in range(8)
    ]


def drawn_pods(draws: random.Random) -> list[Manifest]:
    return [
        gpu_pod(f"pod-{number}", f"node-{draws.randrange(8)}", draws.randint(1, 3), of=owner)
        for number, owner in enumerate(draws.choices(("chat", "code", "others"), k=12))
    ]


def drawn_question(draws: random.Random) -> PodsAsked:
    devices = draws.choice((0, 1, 2, 4))
    limits: dict[str, Any] = {"amd.com/gpu": str(devices)} if devices else {"cpu": "1"}
    spec = {
        "containers": [{"name": "engine", "resources": {"limits": limits}}],
        "nodeSelector": draws.choice(_SELECTORS),
    }
    resource = "amd.com/gpu" if devices else None
    return PodsAsked(ObjectKey("default", draws.choice(("chat", "code", "new"))), resource, spec)


def test_who_asks_after_others_is_told_what_a_reading_of_its_own_tells() -> None:
    draws = random.Random(36)
    for _ in range(20):
        manifests = drawn_nodes(draws)
        nodes = Nodes(manifests)
        readings = [placed_pods(drawn_pods(draws)) for _ in range(2)]
        for _ in range(12):
            pods, asked = draws.choice(readings), drawn_question(draws)
            assert survey(nodes, pods, asked) == survey(manifests, pods, asked)
            ids = draws.choice(((), ("74a1",), ("740f",)))
            own = memory_per_device(manifests, "amd.com/gpu", ids)
            assert memory_per_device(nodes, "amd.com/gpu", ids) == own


def test_what_is_skipped_while_nodes_are_decoded_decides_nothing() -> None:
    draws = random.Random(37)
    more = {"images": [{"names": ["a"], "sizeBytes": 1}], "nodeInfo": {"machineID": "x"}}
    for _ in range(20):
        whole = drawn_nodes(draws)
        for node in whole:
            node["status"] |= more
            node["status"]["conditions"].append({"type": "AMDGPUFailed", "status": "True"})
            if draws.random() < 0.5:
                node["spec"]["taints"] = [{"key": "x", "effect": "NoSchedule"}]
        read = [msgspec.convert(node, ListedNode).manifest() for node in whole]
        assert not any("images" in node["status"] for node in read)
        pods, asked = placed_pods(drawn_pods(draws)), drawn_question(draws)
        assert survey(read, pods, asked) == survey(whole, pods, asked)
        assert [device_conditions(node) for node in read] == [("AMDGPUFailed",)] * 8
        own = memory_per_device(whole, "amd.com/gpu", ())
        assert memory_per_device(read, "amd.com/gpu", ()) == own


def test_a_question_is_answered_once_for_a_reading() -> None:
    asked: list[str] = []

    def work_out() -> str:
        asked.append("again")
        return "answer"

    nodes = Nodes([gpu_node("a")])
    assert [nodes.once("what", work_out), Nodes.of(nodes).once("what", work_out)] == ["answer"] * 2
    assert asked == ["again"]
    Nodes.of(list(nodes)).once("what", work_out)
    assert len(asked) == 2, "another reading may show other nodes"
