"""A quota of a real Kueue over a model's pods, which name a queue in `spec.template`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster.neighbours.kueue import QUEUE_LABEL
from tests.support.cluster import neighbours
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.cluster.quick_pods import condition, engine_image, status, suspend, wait_ready

pytestmark = [pytest.mark.cluster, pytest.mark.neighbour, pytest.mark.usefixtures("only_operator")]

API = "kueue.x-k8s.io/v1beta1"


@pytest.fixture
def limited(namespaced: LiveCluster, tmp_path: Path) -> Iterator[LiveCluster]:
    """A namespace whose queue admits one pod of the model, and an operator."""
    neighbours.ensure("kueue")
    for manifest in quota(namespaced.namespace, pods=1):
        namespaced.kubectl("apply", "--filename=-", manifest=manifest)
    with operator(namespaced, tmp_path / "operator.log"):
        yield namespaced
    # They go with the last of the pods that they count, and so after the namespace.
    queues = ("clusterqueue,resourceflavor", namespaced.namespace)
    namespaced.kubectl("delete", *queues, "--wait=false")


def quota(name: str, pods: int) -> list[dict[str, Any]]:
    # Whatever a pod requests must be covered, and the operator has it request its cache's disk.
    amounts = {"pods": pods, "cpu": "8", "memory": "64Gi", "ephemeral-storage": "64Gi"}
    resources = [{"name": key, "nominalQuota": amount} for key, amount in amounts.items()]
    flavor = {"name": name, "resources": resources}
    covered = [{"coveredResources": [*amounts], "flavors": [flavor]}]
    return [
        _object("ResourceFlavor", name, {}),
        _object("ClusterQueue", name, {"namespaceSelector": {}, "resourceGroups": covered}),
        _object("LocalQueue", "models", {"clusterQueue": name}),
    ]


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}


def test_a_quota_holds_a_replica_back_and_the_status_says_so(limited: LiveCluster) -> None:
    model = neighbours.quick_model(engine_image(limited), replicas=1)
    model["spec"]["template"]["metadata"] = {"labels": {QUEUE_LABEL: "models"}}
    neighbours.apply(limited, model)
    wait_ready(limited)

    limited.kubectl("scale", "atomd/chat", "--replicas=2")
    held = limited.wait(
        "Kueue's word about the quota",
        lambda: (
            found
            if "quota" in (found := condition(limited, "Scheduled")).get("message", "")
            else None
        ),
    )
    assert (held["status"], held["reason"]) == ("False", "Unschedulable")
    assert "kueue.x-k8s.io/admission" in held["message"]
    assert status(limited)["readyReplicas"] == 1, "what was admitted serves on"

    (_, larger, _) = quota(limited.namespace, pods=2)
    patch = json.dumps({"spec": larger["spec"]})
    limited.kubectl("patch", "clusterqueue", limited.namespace, "--type=merge", f"--patch={patch}")
    limited.wait("both replicas", lambda: status(limited).get("readyReplicas") == 2)
    assert wait_ready(limited)["replicas"] == 2


@pytest.mark.slow
def test_a_suspended_model_leaves_its_quota_to_others_and_waits_its_turn(
    limited: LiveCluster,
) -> None:
    def queued(name: str) -> dict[str, Any]:
        model = neighbours.quick_model(engine_image(limited))
        model["metadata"]["name"] = name
        model["spec"]["template"]["metadata"] = {"labels": {QUEUE_LABEL: "models"}}
        return dict(model)

    def is_ready(name: str) -> bool:
        found = (limited.get("atomd", name) or {}).get("status") or {}
        return bool(found.get("readyReplicas") == 1)

    neighbours.apply(limited, queued("chat"))
    wait_ready(limited)
    neighbours.apply(limited, queued("code"))
    limited.wait("code's gate", lambda: pods_of(limited, "code") == ["Pending"])
    suspend(limited, True)
    limited.wait("code in chat's place", lambda: is_ready("code"), seconds=120)
    patch = '{"spec": {"suspend": false}}'
    limited.kubectl("patch", "atomd", "chat", "--type=merge", f"--patch={patch}")
    limited.wait(
        "Kueue's word about the quota",
        lambda: "kueue.x-k8s.io/admission" in condition(limited, "Scheduled").get("message", ""),
    )
    limited.kubectl("delete", "atomd", "code")
    wait_ready(limited, seconds=120)


def pods_of(cluster: LiveCluster, name: str) -> list[str]:
    selector = f"--selector=serving.atom.dev/deployment={name}"
    path = "--output=jsonpath={.items[*].status.phase}"
    return cluster.kubectl("get", "pods", selector, path).stdout.split()
