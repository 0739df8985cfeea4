"""What ResourceSlices and ResourceClaims say is counted as the scheduler counts it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom_operator.domain import ObjectKey
from atom_operator.domain.devices import DeviceClaim, claimed_by, device_picture
from atom_operator.domain.nodes import Nodes
from atom_operator.domain.placed_pods import placed_pods
from atom_operator.plan.devices.claimed_devices import (
    is_counted,
    lacking_class,
    nodes_offering,
    pods_holding,
    with_claimed,
)
from atom_operator.plan.inventory import PodsAsked, survey
from tests.support.operator.builders_operator import gpu_pod

GIB = 1024**3
MI300X = DeviceClaim("gpu.amd.com", ("74a1", "74a9"))


def device(name: str, **attributes: str) -> dict[str, Any]:
    told = {"type": "amdgpu", "deviceID": "0x74a1", **attributes}
    return {
        "name": name,
        "attributes": {key: {"string": value} for key, value in told.items()},
        "capacity": {"memory": {"value": "192Gi"}},
    }


def published(node: str, *devices: dict[str, Any], **pool: int) -> dict[str, Any]:
    told = {"name": node, "generation": 1, "resourceSliceCount": 1, **pool}
    spec = {"driver": "gpu.amd.com", "nodeName": node, "pool": told, "devices": list(devices)}
    return {"metadata": {"name": node}, "spec": spec}


def device_class(expression: str = "device.driver == 'gpu.amd.com'") -> dict[str, Any]:
    selectors = [{"cel": {"expression": expression}}]
    return {"metadata": {"name": "gpu.amd.com"}, "spec": {"selectors": selectors}}


def offered(*slices: dict[str, Any], claim: DeviceClaim = MI300X) -> tuple[str, str]:
    """Allocatable and capacity of node a."""
    node = {"metadata": {"name": "a"}, "status": {}}
    (found,) = nodes_offering([node], device_picture(slices, (), [device_class()]), claim)
    name, none = claim.resource_name, dict[str, str]()
    amounts = (found["status"].get(field, none) for field in ("allocatable", "capacity"))
    allocatable, capacity = (amount.get(name, "0") for amount in amounts)
    return allocatable, capacity


def test_only_matching_devices_without_a_taint_are_offered() -> None:
    tainted = {**device("4"), "taints": [{"key": "sick", "effect": "NoSchedule"}]}
    other, part = device("2", deviceID="0x75a0"), device("3", type="amdgpu-partition")
    assert offered(published("a", device("1"), other, part, tainted)) == ("1", "2")


def test_of_a_pool_the_newest_generation_counts_where_it_is_whole() -> None:
    old = published("a", device("1"), device("2"))
    assert offered(old, published("a", device("1"), generation=2)) == ("1", "1")
    assert offered(published("a", device("1"), resourceSliceCount=2)) == ("0", "0")


def test_a_partition_and_the_least_memory_select() -> None:
    part = device("1", type="amdgpu-partition", partitionProfile="cpx_nps4")
    claim = DeviceClaim("gpu.amd.com", (), "cpx_nps4")
    assert offered(published("a", part, device("2")), claim=claim) == ("1", "1")
    least = DeviceClaim("gpu.amd.com", least_memory_bytes=256 * GIB)
    assert offered(published("a", device("1")), claim=least) == ("0", "0")
    assert 'memory.compareTo(quantity("256Gi")) >= 0' in least.expression


def test_what_claims_were_given_is_held_by_their_pods() -> None:
    def claim(pod: str, *names: str, **result: Any) -> dict[str, Any]:
        results = [
            {"driver": "gpu.amd.com", "pool": "a", "device": name, **result} for name in names
        ]
        reserved = [{"resource": "pods", "name": pod}] if pod else []
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
        return {"metadata": {"name": f"of-{pod}", "namespace": "default"}, "status": status}

    claims = [claim("x", "1", "2"), claim("", "3"), claim("y", "4", adminAccess=True)]
    slices = [published("a", *(device(str(number)) for number in range(8)))]
    picture = device_picture(slices, claims, [device_class()])
    pods = [gpu_pod("x", "a", 0), gpu_pod("y", "a", 0)]
    found = pods_holding(placed_pods(pods), picture, MI300X)
    held = {pod.name: pod.requests.get(MI300X.resource_name) for pod in found.pods}
    assert held == {"x": 2, "y": None, "": 1}
    assert found.requested["a"][MI300X.resource_name] == 3


@pytest.mark.parametrize(
    "spaces", ["device.driver == 'gpu.amd.com'", 'device.driver=="gpu.amd.com"']
)
def test_a_class_that_narrows_its_driver_is_not_counted(spaces: str) -> None:
    whole = device_picture((), (), [device_class(spaces)])
    narrow = device_picture((), (), [device_class(f"{spaces} && device.attributes.size() > 1")])
    assert is_counted(whole, MI300X)
    assert not is_counted(narrow, MI300X)


def test_a_class_that_is_missing_names_those_that_exist() -> None:
    picture = device_picture((), (), [device_class()])
    other = DeviceClaim("gpus.example.org")
    words = lacking_class(picture, other)
    assert words == "DeviceClass gpus.example.org does not exist; there are: gpu.amd.com"


@given(
    ids=st.lists(st.sampled_from(["74a1", "74a9", "75a0"]), unique=True, max_size=3),
    partition=st.sampled_from([None, "cpx_nps4", "dpx_nps1"]),
    least=st.sampled_from([None, GIB, 192 * GIB, 10**9]),
)
def test_what_a_template_asks_for_is_read_back(
    ids: list[str], partition: str | None, least: int | None
) -> None:
    claim = DeviceClaim("gpu.amd.com", tuple(ids), partition, least)
    assert DeviceClaim.read("gpu.amd.com", claim.expression) == claim
    assert DeviceClaim.read("gpu.amd.com", f"{claim.expression} || true") is None


def test_a_template_of_somebody_else_is_charged_and_not_evaluated() -> None:
    def template(**wanted: Any) -> dict[str, Any]:
        exactly = {"deviceClassName": "gpu.amd.com", "count": 4, **wanted}
        return {"spec": {"spec": {"devices": {"requests": [{"name": "x", "exactly": exactly}]}}}}

    theirs = claimed_by(template(selectors=[{"cel": {"expression": "device.healthy"}}]))
    assert theirs is not None
    assert theirs.claim is None
    assert theirs.charged == {
        "count/resourceclaims.resource.k8s.io": 1,
        "gpu.amd.com.deviceclass.resource.k8s.io/devices": 4,
        "requests.deviceclass.resource.kubernetes.io/gpu.amd.com": 4,
    }
    assert claimed_by(template(allocationMode="All")) is None
    assert claimed_by({"spec": {"spec": {}}}) is None


def test_devices_that_are_out_free_no_place_and_hide_none() -> None:
    """Of eight one is sick, and a pod has that and another one: six are free."""
    sick = {**device("0"), "taints": [{"key": "sick", "effect": "NoSchedule"}]}
    slices = [published("a", sick, *(device(str(number)) for number in range(1, 8)))]
    results = [{"driver": "gpu.amd.com", "pool": "a", "device": name} for name in "01"]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": "x", "uid": "1"}],
    }
    claim = {"metadata": {"name": "of-x", "namespace": "default"}, "status": status}
    picture = device_picture(slices, [claim], [device_class()])
    nodes = [{"metadata": {"name": "a"}, "status": {}}]
    nodes_now, pods = with_claimed(
        Nodes(nodes), placed_pods([gpu_pod("x", "a", 0)]), picture, MI300X
    )
    supply = survey(nodes_now, pods, PodsAsked(ObjectKey("", ""), MI300X.resource_name, {}))
    (node,) = supply.nodes
    assert (node.free, node.allocatable, node.unhealthy) == (6, 7, 1)
