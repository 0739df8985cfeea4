"""Pods that claim their devices, with the real scheduler and controllers: they are given what the
operator counts, rollouts leave no claim behind, a device that its driver takes back is told and its
pod moved, and quotas count claims.

Nodes and pods are simulated by kwok; DeviceClass and ResourceSlices are what AMD's driver
publishes. Taints of single devices are alpha in 1.34, which drops them from a slice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom_operator.domain import Manifest
from atom_operator.kinds import DEVICE_CLASS, RESOURCE_SLICE, Kind
from benchmarks.fleet.simulated_nodes import TOLERATION, simulated_nodes
from devcluster import target
from devcluster.health import api_of
from devcluster.settings import read_settings
from tests.support.cluster import neighbours
from tests.support.cluster.live_cluster import ROOT, LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.cluster.quick_pods import condition, status
from tests.support.in_memory_cluster.devices.device_claims import device_class, resource_slice
from tests.support.operator.builders_operator import atom_deployment
from tests.support.waiting import HANG_SECONDS
from tools.kube import command_environment

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.usefixtures("only_operator"),
]

NODES = ("simulated-0", "simulated-1")
DEVICES = 4  # of a node, and of a replica
CLASS = "gpu.amd.com"
RESOURCE = f"deviceclass.resource.kubernetes.io/{CLASS}"
QUOTA = f"{CLASS}.deviceclass.resource.k8s.io/devices"
_PLUGIN = "amd.com/gpu"
_OFTEN = {"ATOM_OPERATOR_RESYNC_SECONDS": "30"}


@dataclass(frozen=True)
class Claiming:
    """`chat`, which claims devices, in a namespace of a real cluster."""

    cluster: LiveCluster

    def apply(self, **changes: Any) -> None:
        spec: dict[str, Any] = {
            "engine": {"image": "localhost/atom-none:0"},
            "accelerator": {"type": "amd", "product": "MI300X", "claim": {}},
            "parallelism": {"tensor": DEVICES},
            "template": {"spec": {"tolerations": [TOLERATION]}},
            "rollout": {"drainSeconds": 0},
        }
        manifest = atom_deployment(**(spec | changes))
        manifest["metadata"]["namespace"] = self.cluster.namespace
        self.cluster.kubectl("apply", "--filename=-", manifest=manifest)

    def wait(self, kind: str, wanted: str, *words: str, seconds: float = 120) -> dict[str, Any]:
        """Wait until the condition is so, of the latest spec, and says these words."""

        def told() -> dict[str, Any] | None:
            found = condition(self.cluster, kind)
            says = all(word in found.get("message", "") for word in words)
            return found if says and wanted in (found.get("status"), found.get("reason")) else None

        return self.cluster.wait(f"{kind} {wanted} {words}", told, seconds=seconds)

    def atom(self, *arguments: str) -> str:
        """What the plug-in prints, whatever it makes of it."""
        command = [sys.executable, "-m", "atom_operator.kubectl_atom"]
        paths = os.pathsep.join([str(ROOT / "operator"), str(ROOT / "engine")])
        environment = command_environment(self.cluster.kubeconfig, self.cluster.tools)
        done = subprocess.run(
            [*command, "-n", self.cluster.namespace, *arguments],
            env={**environment, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    def listed(self, kind: str) -> list[Manifest]:
        text = self.cluster.kubectl("get", kind, "--output=json").stdout
        return list(json.loads(text)["items"])

    def pods(self) -> dict[str, str]:
        """The node of each pod that does not end, "" before it has one."""
        return {
            pod["metadata"]["name"]: pod["spec"].get("nodeName", "")
            for pod in self.listed("pods")
            if not pod["metadata"].get("deletionTimestamp")
        }

    def given(self) -> dict[str, int]:
        """How many devices each pod with a claim was given, of its own node."""
        found = {}
        nodes = self.pods()
        for claim in self.listed("resourceclaims"):
            (pod,) = (owner["name"] for owner in claim["metadata"]["ownerReferences"])
            results = claim.get("status", {}).get("allocation", {"devices": {"results": []}})
            devices = results["devices"]["results"]
            assert {item["pool"] for item in devices} <= {nodes.get(pod)}
            found[pod] = len({item["device"] for item in devices})
        return found

    def wait_given(self, *each: int) -> None:
        """Wait until these pods have these devices, and no other pod has a claim."""

        def so() -> bool:
            return sorted(self.given().values()) == sorted(each) and set(self.given()) == set(
                self.pods()
            )

        self.cluster.wait(f"claims of {each} devices and no other", so, seconds=60)


def _publish(cluster: LiveCluster, kind: Kind, manifest: Manifest) -> None:
    named = {"apiVersion": kind.api_version, "kind": kind.kind, **manifest}
    cluster.kubectl("apply", "--filename=-", manifest=named)


@pytest.fixture
def two_nodes(live_cluster: LiveCluster, tmp_path: Path) -> Iterator[None]:
    """Nodes of a DRA driver instead of a device plugin, with four devices each."""
    if not target.resolve(os.environ).is_embedded:
        pytest.skip("nodes are simulated on the embedded cluster only")
    if live_cluster.get("deviceclass", CLASS) is not None:
        pytest.skip(f"a driver of the cluster has DeviceClass {CLASS}")
    config = yaml.safe_load(Path(live_cluster.kubeconfig).read_text())
    api = api_of(read_settings(os.environ), config["clusters"][0]["cluster"]["server"])
    no_plugin = {"status": {"allocatable": {_PLUGIN: None}, "capacity": {_PLUGIN: None}}}
    patch = f"--patch={json.dumps(no_plugin)}"
    slices = [resource_slice(node, DEVICES) for node in NODES]
    with simulated_nodes(read_settings(os.environ), api, len(NODES), tmp_path / "kwok.log"):
        try:
            for node, offered in zip(NODES, slices, strict=True):
                live_cluster.kubectl(
                    "patch", "node", node, "--subresource=status", "--type=merge", patch
                )
                _publish(live_cluster, RESOURCE_SLICE, offered)
            _publish(live_cluster, DEVICE_CLASS, device_class(CLASS))
            yield
        finally:
            for offered in slices:
                name = offered["metadata"]["name"]
                live_cluster.kubectl("delete", "resourceslice", name, "--ignore-not-found")
            live_cluster.kubectl("delete", "deviceclass", CLASS, "--ignore-not-found")


@pytest.fixture
def claiming(two_nodes: None, namespaced: LiveCluster, tmp_path: Path) -> Iterator[Claiming]:
    with operator(namespaced, tmp_path / "operator.log", _OFTEN):
        yield Claiming(namespaced)


def test_the_scheduler_gives_what_the_operator_counts(claiming: Claiming) -> None:
    claiming.apply(replicas=2)
    claiming.wait("Ready", "True")
    assert sorted(claiming.pods().values()) == sorted(NODES)
    claiming.wait_given(DEVICES, DEVICES)

    claiming.apply(replicas=3)
    words = [f"a pod needs 4 {RESOURCE}", *(f"{node} 0 of 4" for node in NODES)]
    claiming.wait("Scheduled", "InsufficientAccelerators", *words)
    (pod,) = (name for name, node in claiming.pods().items() if not node)
    (waiting,) = (item for item in claiming.listed("pods") if item["metadata"]["name"] == pod)
    (verdict,) = (
        item["message"] for item in waiting["status"]["conditions"] if item["status"] == "False"
    )
    assert "cannot allocate all claims" in verdict

    claiming.apply(replicas=2, engine={"image": "localhost/atom-none:0", "maxModelLen": 1024})
    claiming.wait("Ready", "True")
    assert status(claiming.cluster)["rollout"]["strategy"] != "Surge"
    claiming.wait_given(DEVICES, DEVICES)


def test_rollouts_strand_no_claim_and_no_template(claiming: Claiming) -> None:
    claiming.apply()
    claiming.wait("Ready", "True")
    claiming.wait_given(DEVICES)
    ((_, first_node),) = claiming.pods().items()

    claiming.apply(engine={"image": "localhost/atom-none:0", "maxModelLen": 1024})
    claiming.wait("Ready", "True")
    rollout = status(claiming.cluster)["rollout"]
    assert rollout["strategy"] == "Surge"
    assert f"has 4 {RESOURCE} free, and a pod needs 4" in rollout["reason"]
    claiming.wait_given(DEVICES)
    assert list(claiming.pods().values()) != [first_node]

    (before,) = (item["metadata"]["name"] for item in claiming.listed("resourceclaimtemplates"))
    claiming.apply(parallelism={"tensor": 2})
    claiming.wait("Ready", "True")
    claiming.wait_given(2)
    names = [item["metadata"]["name"] for item in claiming.listed("resourceclaimtemplates")]
    assert len(set(names) - {before}) == 1

    claiming.cluster.kubectl("delete", "atomd", "chat", "--cascade=foreground", "--timeout=50s")
    for kind in ("pods", "resourceclaims", "resourceclaimtemplates"):
        claiming.cluster.wait(f"end of {kind}", lambda kind=kind: not claiming.listed(kind))


def test_a_device_that_its_driver_takes_back_is_told(claiming: Claiming) -> None:
    claiming.apply()
    claiming.wait("Ready", "True")
    ((pod, node),) = claiming.pods().items()
    (other,) = set(NODES) - {node}
    fewer = resource_slice(other, DEVICES - 1)
    fewer["spec"]["pool"]["generation"] = 2
    _publish(claiming.cluster, RESOURCE_SLICE, fewer)

    claiming.apply(replicas=2)
    claiming.wait("Scheduled", "InsufficientAccelerators", f"{node} 0 of 4", f"{other} 3 of 3")
    assert claiming.pods()[pod] == node

    back = resource_slice(other, DEVICES)
    back["spec"]["pool"]["generation"] = 3
    _publish(claiming.cluster, RESOURCE_SLICE, back)
    claiming.wait("Ready", "True")
    claiming.wait_given(DEVICES, DEVICES)
    assert claiming.pods()[pod] == node


@pytest.mark.neighbour
def test_each_pod_of_a_group_claims_its_part_of_the_devices(claiming: Claiming) -> None:
    """By LeaderWorkerSet's own controller; the third group finds no place."""
    neighbours.ensure("lws")
    group, each = {"tensor": DEVICES, "nodes": 2}, DEVICES // 2
    claiming.apply(parallelism=group, replicas=2)
    claiming.wait("Ready", "True", seconds=180)
    claiming.wait_given(each, each, each, each)
    assert set(claiming.pods()) == {"chat-0", "chat-0-1", "chat-1", "chat-1-1"}

    claiming.apply(parallelism=group, replicas=3)
    words = [f"each of 2 pods needs {each} {RESOURCE}", *(f"{node} 0 of 4" for node in NODES)]
    claiming.wait("Scheduled", "InsufficientAccelerators", *words)


def test_a_quota_of_claimed_devices_refuses_claims_and_not_pods(claiming: Claiming) -> None:
    """Kubernetes tells it by an Event of the pod alone; the claim of an old pod is room in it."""
    cluster = claiming.cluster
    cluster.kubectl("create", "quota", "team", f"--hard={QUOTA}={DEVICES}")
    claiming.apply(replicas=2)
    words = f"exceeded quota: team, requested: {QUOTA}=4, used: {QUOTA}=4, limited: {QUOTA}=4"
    claiming.wait("Degraded", "PodsRefused", "resourceclaims.resource.k8s.io is forbidden", words)
    assert len(claiming.pods()) == 2
    assert "exceeded quota: team" in claiming.atom("why", "chat")

    claiming.apply(replicas=1)
    claiming.wait("Ready", "True")
    claiming.apply(replicas=1, engine={"image": "localhost/atom-none:0", "maxModelLen": 1024})
    claiming.wait("Ready", "True", seconds=240)
    rollout = status(cluster)["rollout"]
    assert rollout["strategy"] == "InPlace"
    assert "quota team has no room for 4" in rollout["reason"]


def test_a_pod_leaves_a_device_that_its_driver_has_lost(claiming: Claiming) -> None:
    """Not while a quota takes no second claim of its kind; six minutes of it are waited."""
    cluster = claiming.cluster
    claiming.apply()
    claiming.wait("Ready", "True")
    ((pod, node),) = claiming.pods().items()
    assert f"{cluster.namespace}/chat 4" in claiming.atom("gpus")

    fewer = resource_slice(node, DEVICES - 1)
    fewer["spec"]["pool"]["generation"] = 2
    _publish(cluster, RESOURCE_SLICE, fewer)
    lost = f"pod {pod} on node {node}: its driver publishes device gpu-{DEVICES - 1} no more"
    claiming.wait("DevicesHealthy", "DeviceUnhealthy", lost, seconds=180)
    assert "of " + cluster.namespace + "/chat is published no more" in claiming.atom("gpus")
    cluster.kubectl("create", "quota", "team", f"--hard={QUOTA}=1")
    words = f"exceeded quota: team, requested: {QUOTA}=4"
    claiming.wait("DevicesHealthy", "SuccessorRefused", words, seconds=480)
    assert claiming.pods() == {pod: node}
    cluster.kubectl("delete", "quota", "team")
    cluster.wait(
        "its successor on the other node",
        lambda: pod not in (found := claiming.pods()) and {*found.values()} - {"", node},
        seconds=180,
    )
    claiming.wait("Ready", "True")
    claiming.wait("DevicesHealthy", "True")
    claiming.wait_given(DEVICES)
