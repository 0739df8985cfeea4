"""spec.canary beside a real API server and the Gateway API's own HTTPRoute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import upstream_crds
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.cluster.quick_pods import condition, engine_image, quick_container, status
from tests.support.operator.builders_operator import atom_deployment

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.side_by_side,
    pytest.mark.usefixtures("only_operator"),
]


def shares(cluster: LiveCluster) -> dict[str, int | None]:
    route: dict[str, Any] = cluster.get("httproute", "chat") or {"spec": {"rules": []}}
    return {
        to["name"]: to.get("weight")
        for rule in route["spec"]["rules"]
        for to in rule["backendRefs"]
    }


def change(cluster: LiveCluster, **spec: Any) -> None:
    patch = f"--patch={json.dumps({'spec': spec})}"
    cluster.kubectl("patch", "atomd", "chat", "--type=merge", patch)


def test_it_takes_its_share_and_is_promoted_by_writing_it_into_the_spec(
    namespaced: LiveCluster, tmp_path: Path
) -> None:
    cluster = namespaced
    upstream_crds.install(cluster)
    manifest = atom_deployment(
        engine={"image": engine_image(cluster)},
        accelerator={"type": "cpu", "memory": "1Gi"},
        rollout={"drainSeconds": 0},
        template={"spec": {"containers": [quick_container()]}},
        gateway={"httpRoute": {"parentRefs": [{"name": "gate"}]}},
    )
    manifest["metadata"]["namespace"] = cluster.namespace
    new = {"env": [{"name": "NEW", "value": "yes"}]}
    with operator(cluster, tmp_path / "operator.log"):
        cluster.kubectl("apply", "--filename=-", manifest=manifest)
        cluster.wait("pods", lambda: status(cluster).get("readyReplicas"), seconds=180)
        change(cluster, canary={"change": {"engine": new}, "weight": 30})
        split = {"chat": 70, "chat-canary": 30}
        cluster.wait("a share", lambda: shares(cluster) == split, seconds=180)
        cluster.wait(
            "its turn to be promoted",
            lambda: condition(cluster, "CanaryProgressing").get("reason") == "AwaitingPromotion",
        )
        # Promoted by whoever writes it into the spec: the share goes when the pods are new.
        change(cluster, canary=None, engine=new)
        cluster.wait("the end", lambda: set(shares(cluster)) == {"chat"}, seconds=180)
        cluster.wait("no canary", lambda: cluster.get("atomd", "chat-canary") is None)
        template = (cluster.get("deployment", "chat") or {})["spec"]["template"]
        assert new["env"][0] in template["spec"]["containers"][0]["env"]
        cluster.wait("no pods of it", lambda: not pods_of_the_canary(cluster))


def pods_of_the_canary(cluster: LiveCluster) -> list[str]:
    chosen = "--selector=serving.atom.dev/deployment=chat-canary"
    return cluster.kubectl("get", "pods", chosen, "--output=name").stdout.split()
