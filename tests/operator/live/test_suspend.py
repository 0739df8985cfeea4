"""spec.suspend beside the real controllers of Deployments and HorizontalPodAutoscalers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.cluster.quick_pods import (
    condition,
    engine_image,
    quick_container,
    suspend,
    wait_ready,
)
from tests.support.operator.builders_operator import atom_deployment

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.side_by_side,
    pytest.mark.usefixtures("only_operator"),
]

_PODS = "--selector=serving.atom.dev/deployment=chat"


def phases(cluster: LiveCluster) -> set[str]:
    columns = "--output=jsonpath={.items[*].status.phase}"
    return set(cluster.kubectl("get", "pods", _PODS, columns).stdout.split())


def is_disabled(cluster: LiveCluster) -> bool:
    """Whether the autoscaler's controller has seen that its target has no replicas."""
    found: dict[str, Any] = cluster.get("hpa", "chat") or {}
    conditions = found.get("status", {}).get("conditions") or ()
    return any(item.get("reason") == "ScalingDisabled" for item in conditions)


def test_pods_go_and_come_back_beside_an_autoscaler(
    namespaced: LiveCluster, tmp_path: Path
) -> None:
    image = engine_image(namespaced)
    manifest = atom_deployment(
        engine={"image": image},
        accelerator={"type": "cpu", "memory": "1Gi"},
        rollout={"drainSeconds": 0},
        template={"spec": {"containers": [quick_container()]}},
        autoscaling={"method": "HPA", "minReplicas": 2, "maxReplicas": 3},
    )
    manifest["metadata"]["namespace"] = namespaced.namespace
    with operator(namespaced, tmp_path / "operator.log"):
        namespaced.kubectl("apply", "--filename=-", manifest=manifest)
        wait_ready(namespaced)
        namespaced.wait("autoscaler", lambda: namespaced.get("hpa", "chat"))
        suspend(namespaced, True)
        # The object of a pod that has ended is there for some moments more.
        assert phases(namespaced) <= {"Succeeded", "Failed"}
        assert namespaced.get("service", "chat") is not None
        namespaced.wait("a look of the autoscaler", lambda: is_disabled(namespaced))
        assert condition(namespaced, "Ready")["reason"] == "Suspended"
        assert (namespaced.get("deployment", "chat") or {})["spec"]["replicas"] == 0
        suspend(namespaced, False)
        assert (namespaced.get("deployment", "chat") or {})["spec"]["replicas"] == 2
