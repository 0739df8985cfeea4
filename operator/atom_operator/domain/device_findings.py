"""Pods whose devices are reported sick, and their moves."""

from __future__ import annotations

from dataclasses import dataclass

from atom_operator.constants import Reason


@dataclass(frozen=True, slots=True)
class SickPod:
    """A pod that has a device that its kubelet, a device plugin or a taint calls sick."""

    name: str
    uid: str
    node: str
    words: str  # whose report, and about which device
    serves: bool
    in_doubt: bool = False  # the device may also be another pod's
    offered: bool = False  # new pods may be given the device all the same


@dataclass(frozen=True, slots=True)
class DeviceFindings:
    """Hold the pods with sick devices, the reported one first, and the action. `move`: the pod to
    evict now."""

    sick: tuple[SickPod, ...] = ()
    since: str = ""
    reason: Reason = Reason.DEVICE_UNHEALTHY
    outcome: str = ""
    move: SickPod | None = None
