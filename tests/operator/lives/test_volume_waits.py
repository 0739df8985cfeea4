"""Pods that wait for their volumes: only Events say why, and conditions say it, too."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from atom_operator.cluster.pod_waits.volumes import with_volume_words
from atom_operator.domain import ATOM_DEPLOYMENT, EVENT, POD, VOLUME_CLAIM, Manifest
from atom_operator.integration_values import Site
from atom_operator.pods.pod_state import pod_state
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.kinds import SECRET
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.operator.builders_operator import atom_deployment, condition, gpu_node
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.merged_fields import copied

DISK: dict[str, Any] = {"cache": {"compile": {"claim": "disk"}}}
HUB: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-0.6B", "revision": "v1"},
    "cache": {"weights": {"claim": "disk"}},
    "accelerator": {"type": "cpu", "memory": "16Gi"},
}
CERTIFICATES: dict[str, Any] = {
    "template": {
        "spec": {
            "volumes": [{"name": "ca", "secret": {"secretName": "site-ca"}}],
            "containers": [
                {"name": "engine", "volumeMounts": [{"name": "ca", "mountPath": "/ca"}]}
            ],
        }
    }
}
Change = Callable[[InMemoryCluster], None]


def claim(cluster: InMemoryCluster, phase: str, mode: str = "ReadWriteMany") -> Manifest:
    spec = {"accessModes": [mode]}
    manifest = {"metadata": {"name": "disk"}, "spec": spec, "status": {"phase": phase}}
    return cluster.state.create(VOLUME_CLAIM, manifest)


def not_provided(cluster: InMemoryCluster) -> None:
    made = {**claim(cluster, "Pending"), "kind": VOLUME_CLAIM.kind}
    words = 'storageclass.storage.k8s.io "fast" not found'
    cluster.state.record(made, "ProvisioningFailed", words)


def provide(cluster: InMemoryCluster) -> None:
    stored = cluster.api.find(VOLUME_CLAIM, "disk")
    cluster.state.set_status({**stored, "kind": VOLUME_CLAIM.kind}, {"phase": "Bound"})
    stored["status"] = {"phase": "Bound"}
    cluster.api.touch(stored)


def attach_elsewhere(cluster: InMemoryCluster) -> None:
    """Somebody else's pod has the disk, on a node where ours does not fit."""
    claim(cluster, "Bound", "ReadWriteOnce")
    volume = {"name": "d", "persistentVolumeClaim": {"claimName": "disk"}}
    metadata = {"name": "other", "namespace": "default", "uid": "uid-1", "labels": {}}
    containers = [{"name": "web", "image": "web:1"}]
    spec = {"nodeName": "full", "containers": containers, "volumes": [volume]}
    cluster.api.put_pod({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})


def detach(cluster: InMemoryCluster) -> None:
    cluster.api.objects.pop((POD, "default", "other"))


def nothing(cluster: InMemoryCluster) -> None:
    pass


def make_secret(cluster: InMemoryCluster) -> None:
    cluster.state.create(SECRET, {"metadata": {"name": "site-ca"}})


NOT_FOUND = 'claim disk: ProvisioningFailed: storageclass.storage.k8s.io "fast" not found'
CASES: dict[str, tuple[dict[str, Any], Change, Change, str, str]] = {
    "a claim that nobody provides": (DISK, not_provided, provide, "Scheduled", NOT_FOUND),
    "a claim for weights that nobody provides": (
        HUB,
        not_provided,
        provide,
        "Scheduled",
        NOT_FOUND,
    ),
    "a disk that another node has": (
        DISK,
        attach_elsewhere,
        detach,
        "Degraded",
        'FailedAttachVolume: Multi-Attach error for volume "disk"',
    ),
    "a Secret to mount that is missing": (
        CERTIFICATES,
        nothing,
        make_secret,
        "Degraded",
        'FailedMount: MountVolume.SetUp failed for volume "ca" : secret "site-ca" not found',
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_pod_waits_for_is_told_until_it_is_there(case: str) -> None:
    spec, wrong, right, kind, words = CASES[case]
    full = gpu_node("full", cordoned=True)
    cluster = InMemoryCluster(nodes=[gpu_node("a"), full])
    cluster.kubelets.strict_secrets = True
    wrong(cluster)
    cluster.api.create(ATOM_DEPLOYMENT, atom_deployment(**copied(spec)))
    operator = OperatorClient(cluster, site=Site(template_forbidden=frozenset()))
    cluster.advance(20)
    early = condition(cluster.api, "Degraded")
    assert early["status"] == "False", early  # a moment's wait is none
    cluster.advance(280)
    told = condition(cluster.api, kind)
    assert words in told["message"], told
    assert words in condition(cluster.api, "Ready")["message"]
    right(cluster)
    cluster.advance(700)
    assert condition(cluster.api, "Ready")["status"] == "True", condition(cluster.api, "Ready")
    assert condition(cluster.api, "Degraded")["status"] == "False"
    operator.close()


MULTI, MOUNT = ("FailedAttachVolume", "elsewhere"), ("FailedMount", "timed out")
SEQUENCES: dict[str, tuple[list[tuple[int, tuple[str, str]]], str | None]] = {
    "a moment's complaint": ([(5, MOUNT)], None),
    "a mount that lasts": ([(5, MOUNT), (120, MOUNT)], "FailedMount: timed out"),
    "a disk that is elsewhere": ([(5, MULTI), (120, MOUNT)], "FailedAttachVolume: elsewhere"),
    "a disk that came, and does not mount": (
        [(5, MULTI), (60, ("SuccessfulAttachVolume", "")), (120, MOUNT)],
        "FailedMount: timed out",
    ),
    "an image that is pulled since": ([(60, MOUNT), (70, ("Pulling", "the image"))], None),
}


@pytest.mark.parametrize("what", SEQUENCES)
async def test_what_was_put_right_since_is_not_told(what: str) -> None:
    events, expected = SEQUENCES[what]
    cluster = FakeCluster()
    placed = datetime(2026, 1, 2, tzinfo=UTC)
    for number, (seconds, (reason, words)) in enumerate(events):
        time = (placed + timedelta(seconds=seconds)).isoformat()
        about = {"kind": "Pod", "name": "chat-1"}
        event = {"involvedObject": about, "reason": reason, "message": words, "lastTimestamp": time}
        event["metadata"] = {"name": f"e{number}", "namespace": "default"}
        cluster.objects[EVENT, "default", f"e{number}"] = event
    waiting = {"name": "engine", "state": {"waiting": {"reason": "ContainerCreating"}}}
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": placed.isoformat(),
    }
    status = {"conditions": [scheduled], "containerStatuses": [waiting]}
    pod = {"metadata": {"name": "chat-1", "namespace": "default"}, "status": status}
    assert (await with_volume_words(cluster, pod, pod_state(pod), None)).health.problem == expected
