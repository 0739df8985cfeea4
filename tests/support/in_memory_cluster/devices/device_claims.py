"""Dynamic Resource Allocation: a DRA driver's slices, the controller that makes a claim for each
pod that names a template, and what the scheduler gives.

Selectors are the operator's own; those that it does not write are refused, so that a test that
believes they are evaluated fails. No claim is given a device with a taint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from atom_operator.cluster.errors import RefusedError
from atom_operator.domain import POD, Manifest
from atom_operator.kinds import (
    DEVICE_CLASS,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_SLICE,
    Kind,
)
from tests.support.in_memory_cluster.admission import check
from tests.support.in_memory_cluster.quantities import thousandths
from tests.support.in_memory_cluster.state import ClusterState, is_terminal
from tests.support.operator.merged_fields import copied

DRIVER = "gpu.amd.com"
SICK_TAINT = {"key": "gpu.amd.com/unhealthy", "value": "xgmi", "effect": "NoSchedule"}
_RETRY_SECONDS = 5.0
_EQUALS = re.compile(r'device\.attributes\["gpu\.amd\.com"\]\.(\w+) == "([^"]*)"')
_ONE_OF = re.compile(r'device\.attributes\["gpu\.amd\.com"\]\.(\w+) in \[([^\]]*)\]')
_AT_LEAST = re.compile(
    r'device\.capacity\["gpu\.amd\.com"\]\.(\w+)\.compareTo\(quantity\("([^"]*)"\)\) >= 0'
)


def device_class(name: str = DRIVER) -> Manifest:
    """The DeviceClass that AMD's chart installs."""
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    return {"metadata": {"name": name}, "spec": {"selectors": [selector]}}


def resource_slice(node: str, count: int, **attributes: str) -> Manifest:
    """The slice of a node: so many whole MI300X, unless something else is said."""
    memory = attributes.pop("memory", "192Gi")
    told = {"type": "amdgpu", "deviceID": "0x74a1", "productName": "AMD_Instinct_MI300X_OAM"}
    told |= attributes
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {name: {"string": value} for name, value in told.items()},
            "capacity": {"memory": {"value": memory}},
        }
        for number in range(count)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": f"{node}-{DRIVER}"}, "spec": spec}


def publish_class(state: ClusterState, name: str = DRIVER) -> None:
    """Create the DeviceClass."""
    _create(state, DEVICE_CLASS, device_class(name))


def publish_devices(state: ClusterState, node: str, count: int, **attributes: str) -> Manifest:
    """Create the slice of a node."""
    return _create(state, RESOURCE_SLICE, resource_slice(node, count, **attributes))


def sync_claims(state: ClusterState) -> None:
    """Make the claims that pods wait for, and end the allocations of pods that are over."""
    for pod in state.all(POD):
        if not is_terminal(pod) and not state.is_told(pod):
            for entry in pod["spec"].get("resourceClaims") or ():
                _ensure_claim(state, pod, entry)
    for claim in state.all(RESOURCE_CLAIM):
        users = [_pod_of(state, claim, user) for user in _reserved(claim)]
        if users and not any(pod is not None and not is_terminal(pod) for pod in users):
            state.set_status(claim, {})


def objection(state: ClusterState, node: Manifest, pod: Manifest) -> str | None:
    """Why a node cannot have the pod, as far as its claims are concerned."""
    for entry in pod["spec"].get("resourceClaims") or ():
        claim = _claim_of(state, pod, entry)
        spec = claim["spec"] if claim is not None else _template_spec(state, pod, entry)
        if spec is None:
            return "waiting for resource claim to be created"
        if claim is not None and (claim.get("status") or {}).get("allocation"):
            continue  # of a pod that has its node
        if _choose(state, node, spec) is None:
            return "cannot allocate all claims"
    return None


def allocate(state: ClusterState, node: Manifest, pod: Manifest) -> None:
    """Write what the scheduler gives to the claims of a pod that it binds to a node."""
    for entry in pod["spec"].get("resourceClaims") or ():
        claim = _claim_of(state, pod, entry)
        assert claim is not None
        results = _choose(state, node, claim["spec"])
        user = {"resource": "pods", "name": pod["metadata"]["name"]}
        user["uid"] = pod["metadata"]["uid"]
        allocation = {"devices": {"results": results}}
        state.set_status(claim, {"allocation": allocation, "reservedFor": [user]})


def claims_wanted(state: ClusterState, pod: Manifest) -> Iterator[Manifest]:
    """The claims that would be made for a pod."""
    for entry in pod["spec"].get("resourceClaims") or ():
        spec = _template_spec(state, pod, entry)
        if spec is not None:
            metadata = {"name": _name(pod, entry), "namespace": pod["metadata"]["namespace"]}
            yield {"metadata": metadata, "spec": spec}


def waits_for_claim(state: ClusterState, pod: Manifest) -> bool:
    """Whether the claim of a pod does not exist yet, or never will: the scheduler does not look at
    it, and says nothing (its PreEnqueue)."""
    entries = pod["spec"].get("resourceClaims") or ()
    return any(_claim_of(state, pod, entry) is None for entry in entries)


def _ensure_claim(state: ClusterState, pod: Manifest, entry: Mapping[str, Any]) -> None:
    spec = _template_spec(state, pod, entry)
    if _claim_of(state, pod, entry) is not None or spec is None or not state.may_try(pod):
        return
    metadata = {"name": _name(pod, entry), "namespace": pod["metadata"]["namespace"]}
    claim = {"metadata": metadata, "spec": spec}
    try:
        check(state, RESOURCE_CLAIM, claim)
    except RefusedError as error:
        words = f"PodResourceClaim {entry['name']}: create ResourceClaim : {error}"
        state.record(pod, "FailedResourceClaimCreation", words)
        state.try_again(pod, _RETRY_SECONDS)
        return
    state.create(RESOURCE_CLAIM, claim, pod)
    made = {"name": entry["name"], "resourceClaimName": metadata["name"]}
    before = pod.get("status") or {}
    known = before.get("resourceClaimStatuses") or []
    state.set_status(pod, {**before, "resourceClaimStatuses": [*known, made]})


def publish_health(state: ClusterState) -> None:
    """The driver of each node says which of its devices are sick, as the scheduler reads it."""
    for item in state.all(RESOURCE_SLICE):
        node, spec = item["spec"]["nodeName"], item["spec"]
        whole = state.first_note(item, "devices", copied(spec["devices"]))
        sick = state.sick.get(node)
        key = (item["metadata"]["uid"], "sick devices")
        if sick is None and not state.notes.pop(key, None):
            continue
        if sick is not None:
            state.notes[key] = True
        numbers = sick.numbers if sick is not None else frozenset()
        kept_off = sick.kept_off if sick is not None else ""
        devices = []
        for device in copied(whole):
            if number_of(device["name"]) in numbers and kept_off == "taint":
                devices.append({**device, "taints": [SICK_TAINT]})
            elif number_of(device["name"]) not in numbers or kept_off != "gone":
                devices.append(device)
        if devices != spec["devices"]:
            spec["devices"] = devices
            spec["pool"]["generation"] += 1
            state.api.touch(item)


def numbers_given(state: ClusterState, pod: Manifest) -> frozenset[int]:
    """The numbers of the devices that a pod's claims were given, on its node."""
    return frozenset(
        number_of(result["device"])
        for entry in pod["spec"].get("resourceClaims") or ()
        if (claim := _claim_of(state, pod, entry)) is not None
        for result in results_of(claim)
    )


def number_of(device: str) -> int:
    return int(device.rpartition("-")[2])


def results_of(claim: Manifest) -> list[Mapping[str, Any]]:
    """The devices that a claim was given."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or ())


def _template_spec(
    state: ClusterState, pod: Manifest, entry: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    name = entry["resourceClaimTemplateName"]
    key = (RESOURCE_CLAIM_TEMPLATE, pod["metadata"]["namespace"], name)
    found = state.api.objects.get(key)
    return None if found is None else found["spec"]["spec"]


def _name(pod: Manifest, entry: Mapping[str, Any]) -> str:
    return f"{pod['metadata']['name']}-{entry['name']}"


def _claim_of(state: ClusterState, pod: Manifest, entry: Mapping[str, Any]) -> Manifest | None:
    key = (RESOURCE_CLAIM, pod["metadata"]["namespace"], _name(pod, entry))
    found = state.api.objects.get(key)
    if found is None:
        return None
    owners = found["metadata"].get("ownerReferences") or ()
    ours = any(owner["uid"] == pod["metadata"].get("uid") for owner in owners)
    return found if ours else None  # another pod of that name left it behind


def _choose(
    state: ClusterState, node: Manifest, spec: Mapping[str, Any]
) -> list[dict[str, str]] | None:
    """The devices of a node that a claim would get; None where there are too few."""
    (request,) = spec["devices"]["requests"]
    wanted = request["exactly"]
    classes = {item["metadata"]["name"] for item in state.all(DEVICE_CLASS)}
    if wanted["deviceClassName"] not in classes:
        return None
    expressions = [item["cel"]["expression"] for item in wanted["selectors"]]
    free = [
        {"request": request["name"], "driver": DRIVER, "pool": pool, "device": device["name"]}
        for pool, device in _devices(state, node["metadata"]["name"])
        if all(_selects(expression, device) for expression in expressions)
        and not device.get("taints")
        and (pool, device["name"]) not in _taken(state)
    ]
    return free[: wanted["count"]] if len(free) >= wanted["count"] else None


def _devices(state: ClusterState, node: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for item in state.all(RESOURCE_SLICE):
        if item["spec"]["nodeName"] == node:
            for device in item["spec"]["devices"]:
                yield item["spec"]["pool"]["name"], device


def _taken(state: ClusterState) -> set[tuple[str, str]]:
    return {
        (result["pool"], result["device"])
        for claim in state.all(RESOURCE_CLAIM)
        for result in results_of(claim)
    }


def _selects(expression: str, device: Mapping[str, Any]) -> bool:
    return all(_holds(part, device) for part in expression.split(" && "))


def _holds(part: str, device: Mapping[str, Any]) -> bool:
    attributes = {name: value["string"] for name, value in device["attributes"].items()}
    if match := _EQUALS.fullmatch(part):
        return attributes[match.group(1)] == match.group(2)
    if match := _ONE_OF.fullmatch(part):
        return f'"{attributes[match.group(1)]}"' in match.group(2).split(", ")
    if match := _AT_LEAST.fullmatch(part):
        has = thousandths(device["capacity"][match.group(1)]["value"])
        return has >= thousandths(match.group(2))
    raise AssertionError(f"no operator writes {part}")


def _reserved(claim: Manifest) -> list[Mapping[str, Any]]:
    return list((claim.get("status") or {}).get("reservedFor") or ())


def _pod_of(state: ClusterState, claim: Manifest, user: Mapping[str, Any]) -> Manifest | None:
    pod = state.api.objects.get((POD, claim["metadata"]["namespace"], user["name"]))
    return pod if pod is not None and pod["metadata"]["uid"] == user["uid"] else None


def _create(state: ClusterState, kind: Kind, manifest: Manifest) -> Manifest:
    """Create an object that is in no namespace."""
    return state.create(kind, {**manifest, "metadata": {**manifest["metadata"], "namespace": ""}})
