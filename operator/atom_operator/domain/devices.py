"""Devices that drivers publish for claims (resource.k8s.io/v1): the request, the supply and the
holders.

A class of devices counts as a resource, by the name under which Kubernetes itself offers one as an
extended resource; so any code that plans with resources plans with claims.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from atom_operator.api.v1alpha1.common import memory_quantity
from atom_operator.domain.objects import Manifest
from atom_operator.domain.resources import MEMORY, Resources, amount

CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
# What a ResourceQuota counts claims by (pkg/quota/v1/evaluator/core/resource_claims.go).
CLAIMS_COUNTED = "count/resourceclaims.resource.k8s.io"
_DEVICES_COUNTED = ".deviceclass.resource.k8s.io/devices"
AMD_DRIVER = "gpu.amd.com"
_WHOLE, _PARTITION = "amdgpu", "amdgpu-partition"
_ATTRIBUTES = f'device.attributes["{AMD_DRIVER}"]'
_CAPACITY = f'device.capacity["{AMD_DRIVER}"]'
# A class whose devices are all of the driver's; other selectors narrow it in a way that only the
# scheduler evaluates.
_ALL_OF_DRIVER = re.compile(rf"\s*device\.driver\s*==\s*(['\"]){re.escape(AMD_DRIVER)}\1\s*")
_KEEPS_OFF = ("NoSchedule", "NoExecute")
_WRITTEN = re.compile(
    rf'{re.escape(_ATTRIBUTES)}\.type == "(?P<type>[a-z-]+)"'
    rf'( && {re.escape(_ATTRIBUTES)}\.partitionProfile == "(?P<partition>\w+)")?'
    rf"( && {re.escape(_ATTRIBUTES)}\.deviceID in \[(?P<ids>[^\]]+)\])?"
    rf'( && {re.escape(_CAPACITY)}\.memory\.compareTo\(quantity\("(?P<least>\w+)"\)\) >= 0)?'
)


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
    pod: str  # "" if it is reserved for none
    uid: str = ""  # the pod's


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """Describe the request of each pod's claim. `device_ids`: PCI ids, any device if empty;
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
        """Return the selector in CEL, equivalent to `matches`. A field that a device lacks is an
        error there, so the field that distinguishes kinds of devices comes first."""
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

    @classmethod
    def read(cls, device_class: str, expression: str) -> DeviceClaim | None:
        """Return the claim of which `expression` is the selector; None of one that is not written
        here."""
        match = _WRITTEN.fullmatch(expression)
        if match is None:
            return None
        ids, least = match.group("ids"), match.group("least")
        found = cls(
            device_class,
            tuple(text.strip(' "').removeprefix("0x") for text in ids.split(",")) if ids else (),
            match.group("partition"),
            amount(MEMORY, least) if least else None,
        )
        return found if found.expression == expression else None

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


@dataclass(frozen=True, slots=True)
class ClaimedByPod:
    """Hold the request of one claim by a template. `claim`: None if its selectors are not ours,
    which are not evaluated then."""

    device_class: str
    count: int
    claim: DeviceClaim | None

    @property
    def charged(self) -> Resources:
        """Return the claim's charge to a ResourceQuota, under every name that one may use."""
        return {
            CLAIMS_COUNTED: 1,
            f"{self.device_class}{_DEVICES_COUNTED}": self.count,
            f"requests.{CLASS_PREFIX}{self.device_class}": self.count,
        }


def claimed_by(template: Manifest) -> ClaimedByPod | None:
    """Read a ResourceClaimTemplate that asks for a number of devices of one class; None of any
    other."""
    requests = ((template.get("spec") or {}).get("spec") or {}).get("devices", {}).get("requests")
    wanted = (requests[0] if requests and len(requests) == 1 else {}).get("exactly") or {}
    if wanted.get("allocationMode", "ExactCount") != "ExactCount":
        return None
    name = wanted.get("deviceClassName")
    if not name:
        return None
    selectors = [(item.get("cel") or {}).get("expression") for item in wanted.get("selectors", ())]
    claim = DeviceClaim.read(name, str(selectors[0])) if len(selectors) == 1 else None
    return ClaimedByPod(str(name), int(wanted.get("count", 1)), claim)


@dataclass(frozen=True, slots=True, eq=False)
class DevicePicture:
    """Hold the devices of the cluster at one time; one reading is equal to itself alone. `pools`:
    the complete ones, each with its driver."""

    devices: Mapping[DeviceKey, Device] = field(default_factory=dict)
    pools: frozenset[tuple[str, str]] = frozenset()
    taken: tuple[Taken, ...] = ()
    classes: Mapping[str, bool] = field(default_factory=dict)  # and whether they can be counted

    def matching(self, claim: DeviceClaim) -> Iterator[tuple[DeviceKey, Device]]:
        """Return the devices that may be given for a claim, taken or not."""
        if claim.device_class in self.classes:
            for key, device in self.devices.items():
                if claim.matches(device):
                    yield key, device

    def without(self, namespace: str, names: Container[str]) -> DevicePicture:
        """Return the picture after these pods have gone, which leave their devices."""
        left = (each for each in self.taken if each.namespace != namespace or each.pod not in names)
        return replace(self, taken=tuple(left))

    def memory_bytes(self, claim: DeviceClaim) -> tuple[int, ...]:
        """Return the distinct memory sizes of such devices, sorted; unknown ones are left out."""
        sizes = {device.memory_bytes for _, device in self.matching(claim)}
        return tuple(sorted(sizes - {0}))


def device_picture(
    slices: Iterable[Manifest], claims: Iterable[Manifest], classes: Iterable[Manifest]
) -> DevicePicture:
    """Sum up ResourceSlices, ResourceClaims and DeviceClasses."""
    pools = dict(_whole_pools(slices))
    return DevicePicture(
        devices=dict(_devices(pools)),
        pools=frozenset(pools),
        taken=tuple(_taken(claims)),
        classes={item["metadata"]["name"]: _is_whole_driver(item) for item in classes},
    )


def _is_whole_driver(device_class: Manifest) -> bool:
    selectors = (device_class.get("spec") or {}).get("selectors") or ()
    expressions = [(item.get("cel") or {}).get("expression") or "" for item in selectors]
    return bool(expressions) and all(_ALL_OF_DRIVER.fullmatch(text) for text in expressions)


_Pool = tuple[str, str]
_Specs = Sequence[Mapping[str, Any]]


def _whole_pools(slices: Iterable[Manifest]) -> Iterator[tuple[_Pool, _Specs]]:
    """Yield the slices of each pool's newest generation, if all of them exist: the scheduler
    allocates from no other pool."""
    pools: dict[_Pool, list[Mapping[str, Any]]] = {}
    for item in slices:
        spec = item.get("spec") or {}
        if spec.get("driver") == AMD_DRIVER and spec.get("nodeName"):
            pools.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
    for pool, specs in pools.items():
        newest = max(spec["pool"].get("generation", 0) for spec in specs)
        current = [spec for spec in specs if spec["pool"].get("generation", 0) == newest]
        if len(current) == current[0]["pool"].get("resourceSliceCount", 1):
            yield pool, current


def _devices(pools: Mapping[_Pool, _Specs]) -> Iterator[tuple[DeviceKey, Device]]:
    for (driver, name), specs in pools.items():
        for spec in specs:
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
        pods = [item for item in status.get("reservedFor") or () if _is_pod(item)]
        pod, uid = (str(pods[0].get(field, "")) for field in ("name", "uid")) if pods else ("", "")
        namespace = str(claim["metadata"].get("namespace"))
        for result in allocation:
            if not result.get("adminAccess"):  # a look at a device that others have
                key = DeviceKey(result["driver"], result["pool"], result["device"])
                yield Taken(key, namespace, pod, uid)


def _is_pod(consumer: Mapping[str, Any]) -> bool:
    return consumer.get("resource") == "pods"
