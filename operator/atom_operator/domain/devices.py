"""Devices that drivers publish for claims (resource.k8s.io/v1): what one asks for, which there are,
and who has them.

A class of devices counts as a resource, by the name under which Kubernetes itself offers one as an
extended resource; so whatever plans with resources plans with claims.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from atom_operator.api.v1alpha1.common import memory_quantity
from atom_operator.domain.objects import Manifest
from atom_operator.domain.resources import MEMORY, amount

CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
AMD_DRIVER = "gpu.amd.com"
_WHOLE, _PARTITION = "amdgpu", "amdgpu-partition"
_ATTRIBUTES = f'device.attributes["{AMD_DRIVER}"]'
_CAPACITY = f'device.capacity["{AMD_DRIVER}"]'
# A class whose devices are all of the driver's; other selectors narrow it in a way that only the
# scheduler evaluates.
_ALL_OF_DRIVER = re.compile(rf"\s*device\.driver\s*==\s*(['\"]){re.escape(AMD_DRIVER)}\1\s*")
_KEEPS_OFF = ("NoSchedule", "NoExecute")


class DeviceKey(NamedTuple):
    """Name a device of the cluster."""

    driver: str
    pool: str
    name: str


@dataclass(frozen=True, slots=True)
class Device:
    """Describe a device that a driver publishes, and its node."""

    node: str
    attributes: Mapping[str, str]  # those that are strings
    memory_bytes: int  # 0 where the driver could not read it
    taints: tuple[str, ...] = ()  # for which the scheduler gives it to no claim


@dataclass(frozen=True, slots=True)
class Taken:
    """A device that a claim has, and the pod for which it is reserved."""

    device: DeviceKey
    namespace: str
    pod: str  # "" where it is reserved for none


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """Say what the claim of each pod asks for. `device_ids`: PCI ids, any where empty;
    `partition`: the mode of a part of a GPU, None for whole ones."""

    device_class: str
    device_ids: tuple[str, ...] = ()
    partition: str | None = None
    least_memory_bytes: int | None = None

    @property
    def resource_name(self) -> str:
        return f"{CLASS_PREFIX}{self.device_class}"

    @property
    def expression(self) -> str:
        """The selector in CEL, of which `matches` is the same. A field that a device lacks is an
        error there, so what tells kinds of devices apart comes first."""
        kind = _WHOLE if self.partition is None else _PARTITION
        parts = [f'{_ATTRIBUTES}.type == "{kind}"']
        if self.partition is not None:
            parts.append(f'{_ATTRIBUTES}.partitionProfile == "{self.partition}"')
        if self.device_ids:
            ids = ", ".join(f'"0x{number}"' for number in self.device_ids)
            parts.append(f"{_ATTRIBUTES}.deviceID in [{ids}]")
        if self.least_memory_bytes is not None:
            least = memory_quantity(self.least_memory_bytes)
            parts.append(f'{_CAPACITY}.memory.compareTo(quantity("{least}")) >= 0')
        return " && ".join(parts)

    def matches(self, device: Device) -> bool:
        """Return whether the scheduler may give the device for the claim."""
        found = device.attributes
        if found.get("type") != (_WHOLE if self.partition is None else _PARTITION):
            return False
        if self.partition is not None and found.get("partitionProfile") != self.partition:
            return False
        if self.device_ids and found.get("deviceID", "").removeprefix("0x") not in self.device_ids:
            return False
        least = self.least_memory_bytes
        return least is None or device.memory_bytes >= least


@dataclass(frozen=True, slots=True, eq=False)
class DevicePicture:
    """The devices of the cluster at one time; one reading is equal to itself alone."""

    devices: Mapping[DeviceKey, Device] = field(default_factory=dict)
    taken: tuple[Taken, ...] = ()
    classes: Mapping[str, bool] = field(default_factory=dict)  # and whether they can be counted

    def matching(self, claim: DeviceClaim) -> Iterator[tuple[DeviceKey, Device]]:
        """The devices that may be given for a claim, taken or not."""
        if claim.device_class in self.classes:
            for key, device in self.devices.items():
                if claim.matches(device):
                    yield key, device

    def memory_bytes(self, claim: DeviceClaim) -> tuple[int, ...]:
        """The different sizes of such devices, sorted; of those that tell theirs."""
        sizes = {device.memory_bytes for _, device in self.matching(claim)}
        return tuple(sorted(sizes - {0}))


def device_picture(
    slices: Iterable[Manifest], claims: Iterable[Manifest], classes: Iterable[Manifest]
) -> DevicePicture:
    """Sum up ResourceSlices, ResourceClaims and DeviceClasses."""
    return DevicePicture(
        devices=dict(_devices(slices)),
        taken=tuple(_taken(claims)),
        classes={item["metadata"]["name"]: _is_whole_driver(item) for item in classes},
    )


def _is_whole_driver(device_class: Manifest) -> bool:
    selectors = (device_class.get("spec") or {}).get("selectors") or ()
    expressions = [(item.get("cel") or {}).get("expression") or "" for item in selectors]
    return bool(expressions) and all(_ALL_OF_DRIVER.fullmatch(text) for text in expressions)


def _devices(slices: Iterable[Manifest]) -> Iterator[tuple[DeviceKey, Device]]:
    """Yield the devices of each pool's newest generation, where all of its slices are there: the
    scheduler gives nothing of another."""
    pools: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for item in slices:
        spec = item.get("spec") or {}
        if spec.get("driver") == AMD_DRIVER and spec.get("nodeName"):
            pools.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
    for (driver, name), specs in pools.items():
        newest = max(spec["pool"].get("generation", 0) for spec in specs)
        current = [spec for spec in specs if spec["pool"].get("generation", 0) == newest]
        if len(current) != current[0]["pool"].get("resourceSliceCount", 1):
            continue
        for spec in current:
            for device in spec.get("devices") or ():
                key = DeviceKey(driver, name, str(device["name"]))
                yield key, _device(str(spec["nodeName"]), device)


def _device(node: str, device: Mapping[str, Any]) -> Device:
    attributes = {
        name.removeprefix(f"{AMD_DRIVER}/"): str(value["string"])
        for name, value in (device.get("attributes") or {}).items()
        if "string" in value
    }
    capacity = {
        name.removeprefix(f"{AMD_DRIVER}/"): value
        for name, value in (device.get("capacity") or {}).items()
    }
    memory = (capacity.get("memory") or {}).get("value", "0")
    taints = tuple(
        f"{taint['key']}:{taint['effect']}"
        for taint in device.get("taints") or ()
        if taint.get("effect") in _KEEPS_OFF
    )
    return Device(node, attributes, amount(MEMORY, str(memory)), taints)


def _taken(claims: Iterable[Manifest]) -> Iterator[Taken]:
    for claim in claims:
        status = claim.get("status") or {}
        allocation = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
        pods = [item["name"] for item in status.get("reservedFor") or () if _is_pod(item)]
        namespace = str(claim["metadata"].get("namespace"))
        for result in allocation:
            if not result.get("adminAccess"):  # a look at a device that others have
                key = DeviceKey(result["driver"], result["pool"], result["device"])
                yield Taken(key, namespace, str(pods[0]) if pods else "")


def _is_pod(consumer: Mapping[str, Any]) -> bool:
    return consumer.get("resource") == "pods"
