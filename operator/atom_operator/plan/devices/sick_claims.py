"""Finds pods whose claimed devices their driver reports as unhealthy: by a taint in its
ResourceSlice, or by leaving a device out of it. Pure.

A claim names its pod's devices, so there is no doubt whose they are. A driver that is away
publishes no slice at all (the kubelet removes its slices after half a minute), which is no report
about the devices. Called by reconcile/device_moves.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from atom_operator.domain import Observed, PodState
from atom_operator.domain.devices import (
    ClaimedByPod,
    DeviceKey,
    DevicePicture,
    claimed_by,
)
from atom_operator.domain.objects import ChildKey
from atom_operator.kinds import RESOURCE_CLAIM_TEMPLATE
from atom_operator.plan.devices.claimed_devices import is_counted


def claim_of_pods(observed: Observed) -> ClaimedByPod | None:
    """Return the claim by our template of a pod of the running revision; None if it claims no
    device, or if the user's overlay names another template."""
    template = observed.records.running.template if observed.records.running is not None else {}
    for entry in (template.get("spec") or {}).get("resourceClaims") or ():
        name = str(entry.get("resourceClaimTemplateName"))
        found = observed.children.get(ChildKey(RESOURCE_CLAIM_TEMPLATE, name))
        if found is not None:
            return claimed_by(found)
    return None


def said_by_driver(
    pods: Iterable[PodState], namespace: str, picture: DevicePicture
) -> Mapping[str, str]:
    """Return the drivers' complaints about the devices of pods, by the pods' uids."""
    wanted = {pod.uid for pod in pods}
    found: dict[str, list[str]] = {}
    for taken in picture.taken:
        if taken.namespace != namespace or taken.uid not in wanted:
            continue
        words = _against(taken.device, picture)
        if words is not None:
            found.setdefault(taken.uid, []).append(words)
    return {uid: "; ".join(sorted(words)) for uid, words in found.items()}


def _against(key: DeviceKey, picture: DevicePicture) -> str | None:
    device = picture.devices.get(key)
    if device is not None:
        taints = ", ".join(device.taints)
        return f"its driver gives device {key.name} the taint {taints}" if taints else None
    if (key.driver, key.pool) not in picture.pools:
        return None
    return f"its driver publishes device {key.name} no more"


def without_devices_of(picture: DevicePicture, pods: Iterable[PodState]) -> DevicePicture:
    """Return the picture without these pods' devices: a kubelet identifies sick devices differently
    (by a CDI id), so all of theirs count as sick."""
    uids = {pod.uid for pod in pods}
    theirs = {taken.device for taken in picture.taken if taken.uid in uids}
    left = {key: device for key, device in picture.devices.items() if key not in theirs}
    return replace(picture, devices=left)


def lacking_count(picture: DevicePicture | None, claimed: ClaimedByPod) -> str | None:
    """Return why places for a claim cannot be counted, or None."""
    name = claimed.device_class
    if picture is None:
        return "the operator may not read ResourceSlices, so it knows of no other place"
    if claimed.claim is not None and is_counted(picture, claimed.claim):
        return None
    return f"only the scheduler evaluates what selects of DeviceClass {name}, so no place is known"
