"""Makes the rows of `kubectl atom gpus` for devices that pods claim, by node and kind. Pure.

Published ResourceSlices and allocated ResourceClaims, counted as the operator counts them
(plan/devices/claimed_devices.py). Called by gpus_view.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from atom_operator import constants
from atom_operator.api.v1alpha1.common import memory_quantity
from atom_operator.domain import Manifest, NodeSupply, ObjectKey
from atom_operator.domain.devices import (
    AMD_DRIVER,
    Device,
    DeviceClaim,
    DeviceKey,
    DevicePicture,
    Taken,
)
from atom_operator.domain.nodes import Nodes
from atom_operator.domain.placed_pods import placed_pods
from atom_operator.plan.accelerators import product_of_device_id, shares_memory
from atom_operator.plan.devices.claimed_devices import with_claimed
from atom_operator.plan.inventory import PodsAsked, survey

_ASKED = ObjectKey("", "")
# As our pods do.
_TOLERATES = {"tolerations": [{"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]}


@dataclass(frozen=True, slots=True)
class Row:
    """Describes one kind of device of one node, in the order of the table's columns."""

    node: str
    product: str
    resource: str
    memory: str
    devices: int
    used: int
    free: int
    state: str
    holders: str


def claimed_rows(
    nodes: Sequence[Manifest], pods: Sequence[Manifest], picture: DevicePicture
) -> Iterator[Row]:
    """Yield a row for each node and kind that a driver publishes."""
    for partition in sorted({_partition(each) for each in picture.devices.values()}):
        claim = DeviceClaim(_class_of(picture), partition=partition or None)
        # Without a class they are there all the same, and no pod is given one.
        counted = replace(picture, classes={claim.device_class: True})
        known, held = with_claimed(Nodes(nodes), placed_pods(pods), counted, claim)
        supply = survey(known, held, PodsAsked(_ASKED, claim.resource_name, _TOLERATES))
        for item in supply.nodes:
            here = {
                key: device for key, device in counted.matching(claim) if device.node == item.name
            }
            if here:
                taken = tuple(each for each in picture.taken if each.device in here)
                yield _row(item, claim, here, taken, _owners(pods), has_class=bool(picture.classes))


def gone_lines(picture: DevicePicture, pods: Sequence[Manifest]) -> Iterator[str]:
    """Name the claimed devices that their driver no longer publishes."""
    for taken in picture.taken:
        key = taken.device
        if key.driver == AMD_DRIVER and key not in picture.devices:
            owner = _owner(taken, _owners(pods))
            why = (
                "" if (key.driver, key.pool) in picture.pools else "; its driver publishes nothing"
            )
            yield f"{key.pool}: device {key.name} of {owner} is published no more{why}"


def _row(
    item: NodeSupply,
    claim: DeviceClaim,
    here: Mapping[DeviceKey, Device],
    taken: Sequence[Taken],
    owners: Mapping[tuple[str, str], str],
    *,
    has_class: bool,
) -> Row:
    held = Counter(_owner(each, owners) for each in taken)
    taints = [f"{key.name} {', '.join(dev.taints)}" for key, dev in here.items() if dev.taints]
    states = [*item.blockers, *taints]
    if not has_class:
        states.append("no DeviceClass of the driver")
    return Row(
        node=item.name,
        product="/".join(_products(here.values())) or "unknown",
        resource=_resource(claim),
        memory="/".join(_memories(here.values(), claim)) or "unknown",
        devices=item.allocatable,
        used=sum(held.values()),
        free=item.free if has_class and not item.blockers else 0,
        state="; ".join(states) or "ok",
        holders=", ".join(f"{name} {count}" for name, count in sorted(held.items())) or "-",
    )


def _partition(device: Device) -> str:
    return device.attributes.get("partitionProfile", "") if _is_part(device) else ""


def _is_part(device: Device) -> bool:
    return device.attributes.get("type") == "amdgpu-partition"


def _class_of(picture: DevicePicture) -> str:
    """Return the class that has all of the driver's devices; of several the first by name."""
    whole = sorted(name for name, counted in picture.classes.items() if counted)
    return whole[0] if whole else AMD_DRIVER


def _resource(claim: DeviceClaim) -> str:
    """Return the class by which pods claim them, with the mode of parts of a GPU."""
    return " ".join(filter(None, (claim.device_class, claim.partition)))


def _products(devices: Iterable[Device]) -> list[str]:
    ids = {device.attributes.get("deviceID", "").removeprefix("0x") for device in devices}
    return sorted({product.name for each in ids if (product := product_of_device_id(each))})


def _memories(devices: Iterable[Device], claim: DeviceClaim) -> list[str]:
    sizes = sorted({device.memory_bytes for device in devices} - {0})
    shared = " (share)" if shares_memory(claim.partition) else ""
    return [f"{memory_quantity(size)}{shared}" for size in sizes]


def _owners(pods: Sequence[Manifest]) -> dict[tuple[str, str], str]:
    """Return the AtomDeployment of each pod that has one."""
    found = {}
    for pod in pods:
        metadata = pod["metadata"]
        name = (metadata.get("labels") or {}).get(constants.LABEL_DEPLOYMENT)
        if name:
            found[str(metadata.get("namespace")), str(metadata["name"])] = str(name)
    return found


def _owner(taken: Taken, owners: Mapping[tuple[str, str], str]) -> str:
    name = owners.get((taken.namespace, taken.pod)) or taken.pod or "(no pod)"
    return f"{taken.namespace}/{name}"
