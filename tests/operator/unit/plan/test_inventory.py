"""What nodes and pods say about free accelerators, and who may go where."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.domain import ObjectKey
from atom_operator.domain.placed_pods import placed_pods
from atom_operator.domain.resources import requests_of
from atom_operator.plan.inventory import (
    PodsAsked,
    memory_per_device,
    survey,
)
from atom_operator.plan.node_labels import label_values, memory_share_bytes, products_of
from atom_operator.plan.room import can_take_one, shortage
from tests.support.operator.builders_operator import gpu_node, gpu_pod

GIB = 1024**3
KEY = ObjectKey("default", "chat")
POD = {"containers": [{"name": "engine", "resources": {"limits": {"amd.com/gpu": "4"}}}]}


def supply(nodes: list[Any], pods: list[Any] | None = None, **pod_spec: Any) -> Any:
    return survey(
        nodes, placed_pods(pods or []), PodsAsked(KEY, "amd.com/gpu", {**POD, **pod_spec})
    )


@pytest.mark.parametrize(
    "labels",
    [
        {"amd.com/gpu.device-id": "74a1"},
        {"beta.amd.com/gpu.device-id": "74a1"},
        {"amd.com/gpu.device-id.74a1": "8"},
        {"beta.amd.com/gpu.device-id.74a1": "8", "beta.amd.com/gpu.device-id": "74a1"},
        {"amd.com/gpu.device-id": "74B5".lower()},  # a virtual function, which has no product name
        {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"},  # a labeller without device ids
        {"beta.amd.com/gpu.product-name.AMD_Instinct_MI300X_OAM": "8"},
    ],
)
def test_a_product_is_found_in_every_form_of_the_labels(labels: dict[str, str]) -> None:
    assert [product.name for product in products_of(labels)] == ["MI300X"]


def test_a_mixed_node_has_every_value() -> None:
    labels = {"amd.com/gpu.vram.192G": "6", "amd.com/gpu.vram.64G": "2"}
    assert label_values(labels, "vram") == ("192G", "64G")
    assert memory_share_bytes(labels, "amd.com/gpu") is None


@pytest.mark.parametrize(
    ("labels", "resource", "share_gib"),
    [
        ({"amd.com/gpu.device-id": "74a1"}, "amd.com/gpu", 192),
        ({"amd.com/gpu.vram": "96G"}, "amd.com/gpu", 96),
        # 64 devices of 24 GiB; the whole node offers one resource name per mode, or one for all.
        ({"amd.com/gpu.device-id": "74a1"}, "amd.com/cpx_nps4", 24),
        (
            {"amd.com/gpu.device-id": "74a1", "amd.com/gpu.compute-memory-partition": "cpx_nps4"},
            "amd.com/gpu",
            24,
        ),
        # Under NPS1 each half of an MI355X may address all 288 GiB, which both share.
        ({"amd.com/gpu.device-id": "75a3", "amd.com/gpu.vram": "144G"}, "amd.com/dpx_nps1", 144),
    ],
)
def test_memory_of_a_partition_is_its_share(
    labels: dict[str, str], resource: str, share_gib: int
) -> None:
    assert memory_share_bytes(labels, resource) == share_gib * GIB


def test_memory_is_asked_of_nodes_that_offer_the_resource_and_the_product() -> None:
    nodes = [
        gpu_node("a"),
        gpu_node("b", labels={"amd.com/gpu.device-id": "740f"}),
        gpu_node("c", resource="amd.com/cpx_nps4"),
    ]
    assert memory_per_device(nodes, "amd.com/gpu", ()) == (64 * GIB, 192 * GIB)
    assert memory_per_device(nodes, "amd.com/gpu", ("74a1",)) == (192 * GIB,)
    assert memory_per_device(nodes, "amd.com/cpx_nps4", ()) == (24 * GIB,)


def test_free_is_allocatable_minus_what_every_running_pod_requests() -> None:
    finished = gpu_pod("done", "a", 8)
    finished["status"]["phase"] = "Succeeded"
    found = supply(
        [gpu_node("a"), gpu_node("b")],
        [gpu_pod("x", "a", 3), gpu_pod("y", "a", 2, of="chat"), finished],
    )
    assert [(node.name, node.free, node.ours) for node in found.nodes] == [
        ("a", 3, 1),
        ("b", 8, 0),
    ]
    assert [pod["amd.com/gpu"] for pod in found.nodes[0].replaced] == [2]
    best = can_take_one(found)
    assert best is not None
    assert best.name == "b"
    assert shortage(found) is None


def test_a_pod_takes_its_sidecars_together_and_init_containers_one_by_one() -> None:
    def container(count: str, **more: str) -> dict[str, Any]:
        return {"resources": {"requests": {"amd.com/gpu": count}}, **more}

    spec = {
        "containers": [container("1"), container("2")],
        "initContainers": [container("8"), container("1", restartPolicy="Always")],
    }
    assert requests_of(spec)["amd.com/gpu"] == 8
    spec["initContainers"] = spec["initContainers"][1:]
    assert requests_of(spec)["amd.com/gpu"] == 4
    assert requests_of(spec)["amd.com/cpx_nps1"] == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cordoned": True}, "cordoned"),
        ({"ready": "Unknown"}, "not ready"),
        (
            {"taints": [{"key": "amd-gpu-unhealthy", "effect": "NoSchedule"}]},
            "taint amd-gpu-unhealthy:NoSchedule",
        ),
        (
            {"taints": [{"key": "amd-dcm", "value": "up", "effect": "NoExecute"}]},
            "taint amd-dcm=up:NoExecute",
        ),
        ({"resource": "amd.com/cpx_nps4"}, "has amd.com/cpx_nps4 and no amd.com/gpu"),
        (
            {
                "gpus": 0,
                "capacity": 8,
                "labels": {"metricsexporter.amd.com.gpu.3.state": "unhealthy"},
            },
            "every amd.com/gpu is unhealthy (devices 3)",
        ),
    ],
)
def test_a_node_that_cannot_be_used_says_why(changes: dict[str, Any], words: str) -> None:
    found = supply([gpu_node("bad", **changes)])
    assert can_take_one(found) is None
    assert f"bad: {words}" in str(shortage(found))


def test_devices_that_are_unhealthy_are_counted_where_the_others_are_free() -> None:
    message = shortage(supply([gpu_node("a", gpus=6, capacity=8)], [gpu_pod("x", "a", 5)]))
    assert "free: a 1 of 6 (2 unhealthy)" in str(message)


def test_soft_taints_and_tolerated_ones_block_nothing() -> None:
    taints = [
        {"key": "amd.com/gpu", "value": "x", "effect": "NoSchedule"},
        {"key": "busy", "effect": "PreferNoSchedule"},
    ]
    tolerations = [{"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert can_take_one(supply([gpu_node("a", taints=taints)], tolerations=tolerations))
    assert not can_take_one(supply([gpu_node("a", taints=taints)]))


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ({"key": "amd.com/gpu.device-id", "operator": "In", "values": ["74a1"]}, True),
        ({"key": "amd.com/gpu.device-id", "operator": "In", "values": ["74a5"]}, False),
        ({"key": "amd.com/gpu.device-id", "operator": "NotIn", "values": ["74a5"]}, True),
        ({"key": "zone", "operator": "Exists"}, False),
        ({"key": "zone", "operator": "DoesNotExist"}, True),
    ],
)
def test_required_affinity_is_kept(expression: dict[str, Any], matches: bool) -> None:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    assert bool(can_take_one(supply([gpu_node("a")], affinity=affinity))) is matches


def test_a_shortage_names_free_and_blocked_nodes() -> None:
    message = shortage(
        supply([gpu_node("a"), gpu_node("b", cordoned=True)], [gpu_pod("x", "a", 6)])
    )
    assert message == (
        "a pod needs 4 amd.com/gpu on one node; free: a 2 of 8; blocked: b: cordoned"
    )
    assert "device plugin" in str(shortage(supply([])))
