"""The cluster of the operator's tests and a real one do the same on the same generated scripts, and
get stuck and are released alike."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atom_operator.cluster.client import ApiCluster
from atom_operator.cluster.replicas.stuck_scaling import renew_annotations
from atom_operator.constants import LABEL_DEPLOYMENT
from atom_operator.domain import ObjectKey
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.players import (
    InMemoryWorkload,
    LiveWorkload,
    in_memory_writer,
    live_writer,
)
from tests.support.cluster.same_scripts import draw_workload, draw_writes
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.random_search import examples
from tools.kube import KubeError

pytestmark = [pytest.mark.cluster, pytest.mark.whole]


@pytest.mark.parametrize("seed", range(examples(12)))
async def test_writes_have_the_same_outcome(
    seed: int, namespaced: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", namespaced.kubeconfig)
    port = ApiCluster.connect((namespaced.namespace,))
    real = live_writer(port, namespaced)
    double = in_memory_writer(FakeCluster(), namespaced.namespace)
    done = []
    for step in draw_writes(seed):
        done.append(str(step))
        assert await double.play(step) == await real.play(step), "\n".join(done)
    await port.close()


@pytest.mark.parametrize("seed", range(examples(12)))
def test_a_workload_comes_to_the_same_rest(seed: int, namespaced: LiveCluster) -> None:
    double, real = InMemoryWorkload(), LiveWorkload(namespaced)
    done = []
    for step in draw_workload(seed):
        done.append(str(step))
        double.play(step)
        if double.has_a_race():
            return  # one cluster's rest is another's luck: nothing after this can be compared
        real.play(step)
        if step.action == "quota":
            continue
        wanted = double.look()
        seen = [real.look()]

        def same(wanted: object = wanted, seen: list[object] = seen) -> bool:  # type: ignore[assignment]
            seen[:] = [real.look()]
            return seen[0] == wanted

        try:
            namespaced.wait("the same rest", same)
        except KubeError:
            if real.exceeds_quota():
                return  # it miscounted, and the double's count is right: no rest to compare
            assert seen[0] == wanted, "\n".join(done)


def _sized(cluster: LiveCluster) -> dict[str, int]:
    """The ReplicaSets that have replicas, by the images of their pods."""
    found = json.loads(cluster.kubectl("get", "replicasets", "--output=json").stdout)["items"]
    return {
        item["spec"]["template"]["spec"]["containers"][0]["image"]: item["spec"]["replicas"]
        for item in found
        if item["spec"]["replicas"]
    }


def _deployment(image: str, **more: Any) -> dict[str, Any]:
    """Pods that fit no node, so that none of them is ever available."""
    labels = {LABEL_DEPLOYMENT: "web"}
    pod = {"nodeSelector": {"no": "node"}, "containers": [{"name": "web", "image": image}]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **more},
    }


async def test_a_controller_that_scales_for_ever_is_released(
    namespaced: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubernetes#102551: Recreate, another number and other pods together, in mid-rollout."""
    cluster, key = namespaced, ObjectKey(namespaced.namespace, "web")
    steps = {"maxSurge": 0, "maxUnavailable": 1}
    rolling = {"replicas": 2, "strategy": {"type": "RollingUpdate", "rollingUpdate": steps}}
    for image, sizes in (("web:1", {"web:1": 2}), ("web:2", {"web:1": 1, "web:2": 1})):
        cluster.kubectl("apply", "--filename=-", manifest=_deployment(image, **rolling))
        cluster.wait(f"rollout of {image}", lambda sizes=sizes: _sized(cluster) == sizes)
    recreate = _deployment("web:3", replicas=1, strategy={"type": "Recreate"})
    cluster.kubectl("apply", "--filename=-", manifest=recreate)

    def seen() -> dict[str, Any] | None:
        found = cluster.get("deployment", "web") or {}
        observed = (found.get("status") or {}).get("observedGeneration")
        return found if observed == found["metadata"]["generation"] else None

    deployment = cluster.wait("a look of the controller", seen)
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert _sized(cluster) == {"web:1": 1, "web:2": 1}, "it only scales, and scales nothing"
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)
    port = ApiCluster.connect((cluster.namespace,))
    assert len(await renew_annotations(port, key, deployment)) == 2
    cluster.wait("the rollout", lambda: _sized(cluster) == {"web:3": 1})
    assert await renew_annotations(port, key, deployment) == []
    await port.close()
