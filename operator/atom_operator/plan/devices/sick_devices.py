"""Finds pods with a device that is reported sick, and whether one of them may be moved. Pure.

There are four sources: the kubelet, which names the devices that each pod has; the device plugin,
which takes devices out of a node's allocatable and leaves them to the pods that have them; the
driver of claimed devices (sick_claims.py); and taints by which AMD's GPU operator keeps pods off a
node. No controller of Kubernetes moves such a pod, and a container that is restarted in it gets the
same devices. Called by reconcile/device_moves.py, which knows how long the report has lasted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from atom_operator.domain import Manifest, Observed, PodState, SickPod
from atom_operator.domain.resources import Resources
from atom_operator.plan.eligibility import is_ready, taint_text, tolerates
from atom_operator.plan.inventory import allocatable_of, devices_out
from atom_operator.plan.node_labels import unhealthy_devices
from atom_operator.plan.placement import Placement
from atom_operator.pods.accelerator_names import accelerator_in

# Of the GPU operator's remediation; its partitioning (amd-dcm) ends pods by itself.
_TAINTS = ("amd-gpu-unhealthy",)


def pods_with_devices(observed: Observed) -> tuple[PodState, ...]:
    """Return the pods that have devices on a node that reports."""
    silent = {pod.name for pod in observed.silent}
    return tuple(
        pod
        for pod in observed.pods
        if pod.placement.node is not None
        and pod.name not in silent
        and accelerator_in(pod.placement.charged or {}, pod.devices.resource)
    )


def nodes_with_devices_out(
    pods: Iterable[PodState], nodes: Mapping[str, Manifest]
) -> frozenset[str]:
    """Return the nodes of these pods some devices of which their plugin has taken out."""
    found = set()
    for pod in pods:
        held, node = (
            accelerator_in(pod.placement.charged or {}, pod.devices.resource),
            nodes.get(pod.placement.node or ""),
        )
        if held is not None and node is not None and devices_out(node, held[0]):
            found.add(str(pod.placement.node))
    return frozenset(found)


def sick_pods(
    pods: Iterable[PodState],
    nodes: Mapping[str, Manifest],
    requested: Mapping[str, Resources],
    placement: Placement,
    by_driver: Mapping[str, str] | None,
) -> tuple[SickPod, ...]:
    """Return the pods with sick devices: those that do not serve first. `nodes`: the readable ones,
    by name; `requested`: by all pods there; `placement`: of such pods; `by_driver`: the drivers'
    complaints about claimed devices, by the uids of pods; None of others."""
    found = []
    for pod in pods:
        node, driver = nodes.get(pod.placement.node or ""), (by_driver or {}).get(pod.uid)
        kubelet = _said_by_kubelet(pod)
        words, in_doubt = kubelet or driver, False
        # A plugin gives away no device that its kubelet calls unhealthy; a scheduler that gives
        # claims theirs hears of it by the driver alone.
        offered = by_driver is not None and kubelet is not None and driver is None
        if words is None and node is not None and is_ready(node):
            words = _said_by_taint(node, placement)
            if words is None:
                words, in_doubt = _said_by_plugin(pod, node, requested)
        if words is not None:
            sick = SickPod(pod.name, pod.uid, str(pod.placement.node), words, pod.ready, in_doubt)
            found.append(replace(sick, offered=offered))
    return tuple(sorted(found, key=_order))


def _order(pod: SickPod) -> tuple[bool, bool, str]:
    return pod.in_doubt or (pod.offered and pod.serves), pod.serves, pod.name


def _said_by_kubelet(pod: PodState) -> str | None:
    if not pod.devices.sick:
        return None
    return f"its kubelet calls {', '.join(pod.devices.sick)} unhealthy"


def _said_by_taint(node: Manifest, placement: Placement) -> str | None:
    for taint in (node.get("spec") or {}).get("taints") or ():
        if taint.get("key") in _TAINTS and not tolerates(placement, taint):
            return f"the node has {taint_text(taint)}"
    return None


def _said_by_plugin(
    pod: PodState, node: Manifest, requested: Mapping[str, Resources]
) -> tuple[str | None, bool]:
    """Return a complaint derived from a node's numbers, and whether they leave open whose the
    devices are."""
    held = accelerator_in(pod.placement.charged or {}, pod.devices.resource)
    out = devices_out(node, held[0]) if held is not None else 0
    if held is None or not out:
        return None, False
    resource, count = held
    left = allocatable_of(node, resource)
    ids = ", ".join(unhealthy_devices(node["metadata"].get("labels") or {}))
    words = f"{out} of {left + out} {resource} of the node are unhealthy" + (
        f" (devices {ids})" if ids else ""
    )
    if count > left:
        return f"{words}, and it has {count}", False
    if not pod.ready and pod.health.was_ready:
        return f"{words}, and it serves no more", False
    together = requested.get(str(pod.placement.node), {}).get(resource, 0)
    if together > left:
        return f"{words}, and pods there have {together} in all", True
    return None, False


def group_of(pod: PodState, pods: Iterable[PodState]) -> frozenset[str]:
    """Name the pods that go together: all of a group, since its controller recreates it whole."""
    return frozenset(each.name for each in pods if each.leader_name == pod.leader_name)


def hindrance(observed: Observed, sick: Iterable[SickPod]) -> str | None:
    """Return the condition that must hold before a pod is moved: one at a time, and none beside a
    rollout."""
    running = observed.deployment
    if running is None or len(observed.workloads) != 1 or not running.progress.up_to_date:
        return "its workload has been written"
    if {running.updated, running.replicas} != {running.desired}:
        return "its rollout is over"
    if observed.leaving:
        return "the pods that end have gone"
    if running.progress.refused_message is not None:
        return "its pods are refused no more"
    names = {pod.name for pod in sick}
    near = {
        name for pod in observed.pods if pod.name in names for name in group_of(pod, observed.pods)
    }
    if any(not pod.ready and pod.name not in near for pod in observed.pods):
        return "its other pods serve"
    return None
