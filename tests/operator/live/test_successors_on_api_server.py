"""A dry run of a pod on a real API server is judged as the pod would be: quotas count in it, limit
ranges fill it in, and nothing of it is stored. The pod before waits for a node that never comes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from atom_operator.cluster.client import ApiCluster
from atom_operator.cluster.successor_judge import ask_for_successor
from atom_operator.domain import ObjectKey, Successor
from atom_operator.domain.resources import quota_usage
from atom_operator.plan.quota import still_refused
from tests.support.cluster.live_cluster import LiveCluster

pytestmark = [pytest.mark.cluster, pytest.mark.side_by_side]

_REPLICA_SET: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "metadata": {"name": "chat"},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "chat"}},
        "template": {
            "metadata": {"labels": {"app": "chat"}},
            "spec": {
                "nodeSelector": {"no": "node"},
                "containers": [
                    {
                        "name": "engine",
                        "image": "localhost/atom-none:0",
                        "resources": {"requests": {"cpu": "1"}},
                    }
                ],
            },
        },
    },
}
_RANGE = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "limits"},
    "spec": {"limits": [{"type": "Container", "default": {"memory": "1Gi"}}]},
}


@pytest.fixture
async def client(
    namespaced: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ApiCluster]:
    monkeypatch.setenv("KUBECONFIG", namespaced.kubeconfig)
    connected = ApiCluster.connect((namespaced.namespace,))
    yield connected
    await connected.close()


def _pods(cluster: LiveCluster) -> list[dict[str, Any]]:
    return list(json.loads(cluster.kubectl("get", "pods", "--output=json").stdout)["items"])


def _limit(cluster: LiveCluster, hard: str) -> None:
    """A quota whose controller has counted what there is."""
    name = hard.replace(".", "-").replace("=", "-").lower()
    cluster.kubectl("create", "quota", name, f"--hard={hard}")
    resource = hard.partition("=")[0]

    def counted() -> bool:
        return resource in ((cluster.get("quota", name) or {}).get("status") or {}).get("used", {})

    cluster.wait(f"count of {hard}", counted, seconds=60)


async def _ask(cluster: LiveCluster, client: ApiCluster) -> Successor:
    (pod,) = _pods(cluster)
    template, key = _REPLICA_SET["spec"]["template"], ObjectKey(cluster.namespace, "chat")
    return await ask_for_successor(client, key, pod["metadata"]["name"], template)


async def test_a_successor_is_judged_as_the_pod_would_be(
    namespaced: LiveCluster, client: ApiCluster
) -> None:
    cluster = namespaced
    # The range first: admission learns of it by a watch, and has by the time of the first pod.
    cluster.kubectl("apply", "--filename=-", manifest=_RANGE)
    cluster.kubectl("apply", "--filename=-", manifest=_REPLICA_SET)
    cluster.wait("pod", lambda: bool(_pods(cluster)), seconds=60)
    (pod,) = _pods(cluster)
    found = await _ask(cluster, client)
    assert found.pod is not None
    (container,) = found.pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"memory": "1Gi"}
    cluster.kubectl("delete", "limitrange", "limits")

    _limit(cluster, "pods=1")
    found = await _ask(cluster, client)
    words = "exceeded quota: pods-1, requested: pods=1, used: pods=1, limited: pods=1"
    assert found.refusal == words
    assert not still_refused(words, [quota_usage(pod["spec"])], 1)  # what the pod itself counts as

    _limit(cluster, "limits.memory=1Ti")
    found = await _ask(cluster, client)
    assert found.refusal is not None
    assert "must specify limits.memory for: engine" in found.refusal
    assert [each["metadata"]["uid"] for each in _pods(cluster)] == [pod["metadata"]["uid"]]
    cluster.kubectl("delete", "--filename=-", manifest=_REPLICA_SET)
