"""Devices of claims as a resource of nodes and pods, so that they are counted like any other. Pure.

A node offers the published devices that a claim matches, and its pods have requested the devices
that their claims were allocated. Devices that a claim does not match are not counted: another
product is another amount. Called where supply is read, by the operator and by `plan`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from atom_operator.domain import Manifest, Plan, Supply
from atom_operator.domain.devices import DeviceClaim, DevicePicture
from atom_operator.domain.nodes import Nodes
from atom_operator.domain.placed_pods import PlacedPod, PlacedPods, summed
from atom_operator.plan.devices.other_pods import has_rules, with_own_rules, without_forbidden
from atom_operator.plan.inventory import PodsAsked, survey


def supply_of(
    plan: Plan, nodes: Nodes, pods: PlacedPods, picture: DevicePicture | None, asked: PodsAsked
) -> Supply | None:
    """Return the nodes' supply for the pods of a plan, which may claim their devices; None if these
    cannot be counted. `picture`: of devices that are claimed."""
    claim, lacking = plan.accelerator.claim, None
    if claim is not None:
        if picture is None or not is_counted(picture, claim):
            return None
        lacking = lacking_class(picture, claim)
        nodes, pods = with_claimed(nodes, pods, picture, claim)
    supply = survey(nodes, pods, asked)
    if has_rules(asked, pods.pods):
        own = {id(pod) for pod in pods.of(asked.key)}
        others = [pod for pod in pods.pods if id(pod) not in own]
        supply = without_forbidden(supply, nodes, others, asked)
        supply = with_own_rules(supply, nodes, pods, asked)
    return replace(supply, pods_per_replica=plan.engine.nodes, lacking=lacking)


def with_claimed(
    nodes: Nodes, pods: PlacedPods, picture: DevicePicture, claim: DeviceClaim
) -> tuple[Nodes, PlacedPods]:
    """Return the nodes and the pods, each with the devices that they have for such claims; worked
    out once for all that ask alike."""

    def counted() -> tuple[Nodes, PlacedPods]:
        return Nodes(nodes_offering(nodes, picture, claim)), pods_holding(pods, picture, claim)

    return nodes.once((pods, picture, claim), counted)


def nodes_offering(
    nodes: Iterable[Manifest], picture: DevicePicture, claim: DeviceClaim
) -> list[Manifest]:
    """Return the nodes with the devices that may be allocated for the claim; tainted ones exist and
    are given to no pod."""
    whole, free = Counter[str](), Counter[str]()
    for _, device in picture.matching(claim):
        whole[device.node] += 1
        free[device.node] += not device.taints
    return [_offering(node, claim.resource_name, whole, free) for node in nodes]


def _offering(node: Manifest, resource: str, whole: Counter[str], free: Counter[str]) -> Manifest:
    name, status = node["metadata"]["name"], node.get("status") or {}
    if not whole[name]:
        return node
    amounts = {
        field: {**(status.get(field) or {}), resource: str(counted[name])}
        for field, counted in (("capacity", whole), ("allocatable", free))
    }
    return {**node, "status": {**status, **amounts}}


def pods_holding(pods: PlacedPods, picture: DevicePicture, claim: DeviceClaim) -> PlacedPods:
    """Return the pods, with the devices that their claims were given; one that no pod on a node has
    is held by a pod without a name. What has a taint is no node's to offer, so it is not counted
    here either: its pod gives nothing back."""
    matching = dict(picture.matching(claim))
    held = Counter[tuple[str, str]]()
    nameless = Counter[str]()
    names = {(pod.namespace, pod.name) for pod in pods.pods}
    for taken in picture.taken:
        device, pod = matching.get(taken.device), (taken.namespace, taken.pod)
        if device is None or device.taints:
            continue
        if pod in names:
            held[pod] += 1
        else:
            nameless[device.node] += 1
    resource = claim.resource_name
    counted = [
        replace(pod, requests={**pod.requests, resource: count})
        if (count := held[pod.namespace, pod.name])
        else pod
        for pod in pods.pods
    ]
    others = [
        PlacedPod("", "", node, {}, None, False, {resource: count})
        for node, count in nameless.items()
    ]
    return summed((*counted, *others))


def lacking_class(picture: DevicePicture, claim: DeviceClaim) -> str | None:
    """Return why no node has devices for a claim; None where some may."""
    if claim.device_class not in picture.classes:
        known = ", ".join(sorted(picture.classes)) or "none"
        return f"DeviceClass {claim.device_class} does not exist; there are: {known}"
    if any(True for _ in picture.matching(claim)):
        return None
    if not picture.devices:
        return (
            "no node publishes a device of driver gpu.amd.com; does the driver run, and does its "
            "log say that a ResourceSlice was refused (a driver version that is no SemVer refuses "
            "all of a node)"
        )
    return f"no published device matches the claim: {claim.expression}"


def is_counted(picture: DevicePicture, claim: DeviceClaim) -> bool:
    """Return whether the class has no selectors but the driver's; others only the scheduler
    evaluates."""
    return picture.classes.get(claim.device_class, True)
