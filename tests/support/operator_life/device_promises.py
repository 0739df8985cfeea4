"""What the documents promise of pods on sick devices: none goes early or without a place, and one
that stays is told of with its node.

Watches the cluster as it is: what its nodes offer, which pod has which device, what keeps off whom.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from atom_operator.constants import LABEL_DEPLOYMENT
from atom_operator.domain import Manifest
from tests.support.in_memory_cluster.devices.device_manager import (
    RESOURCE,
    devices_of,
    sick_devices_of,
)
from tests.support.in_memory_cluster.state import is_ready
from tests.support.operator_life.groups import group_of
from tests.support.operator_life.places import fits
from tests.support.operator_life.promise import promise

if TYPE_CHECKING:
    from tests.support.operator_life.life import Life

_LEAST_SECONDS = 300.0  # that devices are sick before a pod is moved
# Within which it is told: nodes are looked at with each resync, and their picture is a minute old.
_TELL_SECONDS = 420.0
_TAINT = "amd-gpu-unhealthy"


class DevicePromises:
    """Of one life; `hold` breaks it off where a promise does not hold."""

    def __init__(self, life: Life, hold: Callable[[bool, str], None]) -> None:
        self.life = life
        self._hold = hold
        self.since: dict[str, float] = {}  # nodes some devices of which are sick
        self.untold: dict[str, float] = {}

    def watch(self) -> None:
        """Note since when each node has sick devices."""
        for node in self.life.cluster.api.nodes or []:
            name = node["metadata"]["name"]
            if self._is_sick(node):
                self.since.setdefault(name, self.life.state.time)
            else:
                self.since.pop(name, None)

    @promise("devices-are-sick-for-minutes", "moved-pods-have-a-place", "one-pod-moves-at-a-time")
    def judge_move(self, pod: Manifest) -> None:
        """The operator evicts a pod. A canary is an AtomDeployment of its own: its pods and the
        others wait for their own fellows alone."""
        life, name, node = self.life, pod["metadata"]["name"], pod["spec"]["nodeName"]
        owner = pod["metadata"]["labels"][LABEL_DEPLOYMENT]
        lasts = life.state.time - self.since.get(node, life.state.time)
        self._hold(lasts >= _LEAST_SECONDS, f"{name} is moved after {lasts:.0f} s on node {node}")
        group = group_of(life.state, pod)
        workload = life.workload_of(owner)
        has_place = workload is not None and fits(life.state, workload, group)
        self._hold(has_place, f"{name} is moved, and nothing else has a place for it")
        fellows = life.pods_of(owner)
        others = [one for one in fellows if one not in group and not is_ready(one)]
        sick = [one for one in others if sick_devices_of(life.state, one) or self._is_certain(one)]
        self._hold(len(others) == len(sick), f"{name} is moved while another does not serve")
        ends = [one for one in group if one["metadata"].get("deletionTimestamp")]
        self._hold(not ends, f"{name} is moved, and ends already")

    @promise("sick-devices-are-reported")
    def judge(self, parent: Manifest) -> None:
        """A moment is over: a pod that certainly has a sick device is told of after a while."""
        time = self.life.state.time
        conditions = {item["type"]: item for item in parent["status"]["conditions"]}
        told = conditions.get("DevicesHealthy")  # absent while no device is called sick
        found = {}
        for pod in self.life.pods:
            node = pod["spec"].get("nodeName")
            if node not in self.since or node in self.life.state.lost or not self._is_certain(pod):
                continue
            since = self.untold.get(pod["metadata"]["uid"], time)
            found[pod["metadata"]["uid"]] = since
            if told is None:
                self.life.state.look_after(since + _TELL_SECONDS + 1 - time)
                late = time - since > _TELL_SECONDS
                self._hold(not late, f"{pod['metadata']['name']} has a sick device: {told}")
        self.untold = found

    def _is_sick(self, node: Manifest) -> bool:
        taints = (node.get("spec") or {}).get("taints") or ()
        if any(taint["key"] == _TAINT for taint in taints):
            return True
        if self.life.scene.claimed:
            return node["metadata"]["name"] in self.life.state.sick
        status = node["status"]
        offered = int(status["allocatable"].get(RESOURCE, 0))
        return offered < int(status["capacity"].get(RESOURCE, 0))

    def _is_certain(self, pod: Manifest) -> bool:
        """Whether the pod, and no other, has a sick device, by what the cluster shows."""
        name = pod["spec"].get("nodeName")
        if name is None or name in self.life.state.lost:
            return False
        node = self.life.cluster.node(name)
        devices = devices_of(self.life.state, pod)
        taints = (node.get("spec") or {}).get("taints") or ()
        if devices and any(taint["key"] == _TAINT for taint in taints):
            return True
        if self.life.scene.claimed:  # whose are whose says the claim
            return bool(sick_devices_of(self.life.state, pod))
        left = int(node["status"]["allocatable"].get(RESOURCE, 0))
        if len(devices) > left:
            return True
        sick = self.life.state.sick.get(name)
        return sick is not None and sick.told and bool(sick_devices_of(self.life.state, pod))
