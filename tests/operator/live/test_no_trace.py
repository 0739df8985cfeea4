"""What the operator must not leave on an API server: writes that change nothing, and secrets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devcluster import target
from tests.support.cluster.fault_proxy import FaultProxy, fault_proxy
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.operator.builders_operator import atom_deployment

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.side_by_side,
    pytest.mark.usefixtures("only_operator"),
]

_CANARY = "hf_canaryB7x0Zq1"
_IMAGE = "localhost/atom-none:0"
_KINDS = (
    "atomd,deployments,replicasets,controllerrevisions,services,serviceaccounts,configmaps,"
    "poddisruptionbudgets,jobs"
)


@pytest.fixture
def proxy(namespaced: LiveCluster) -> Iterator[FaultProxy]:
    if not target.resolve(os.environ).is_embedded:
        pytest.skip("the proxy knows the kubeconfig of the embedded cluster only")
    with fault_proxy(namespaced.kubeconfig) as running:
        yield running


def apply(cluster: LiveCluster, *flags: str, **changes: Any) -> None:
    manifest = atom_deployment(**{"engine": {"image": _IMAGE}, **changes})
    manifest["metadata"]["namespace"] = cluster.namespace
    cluster.kubectl("apply", "--filename=-", *flags, manifest=manifest)


def listed(cluster: LiveCluster, kinds: str) -> list[dict[str, Any]]:
    text = cluster.kubectl("get", kinds, "--output=json").stdout
    found: list[dict[str, Any]] = json.loads(text)["items"]
    return found


def versions(cluster: LiveCluster) -> dict[str, str]:
    return {
        f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
        for item in listed(cluster, _KINDS)
    }


def reconciles(cluster: LiveCluster, proxy: FaultProxy) -> int:
    """Every reconcile reads the object anew; what did not change is not applied again."""
    path = f"/namespaces/{cluster.namespace}/atomdeployments/chat"
    return sum(seen.method == "GET" and seen.path.endswith(path) for seen in proxy.log)


def status_is_written(cluster: LiveCluster) -> bool:
    return bool((cluster.get("atomd", "chat") or {}).get("status"))


def settled_versions(cluster: LiveCluster, proxy: FaultProxy) -> dict[str, str]:
    """The first versions that two reconciles leave as they are: on a busy machine the cluster's own
    controllers are late, and the status follows them."""

    def look() -> dict[str, str] | None:
        before, done = versions(cluster), reconciles(cluster, proxy)
        cluster.wait("two more reconciles", lambda: reconciles(cluster, proxy) >= done + 2)
        return before if versions(cluster) == before else None

    return cluster.wait("versions that stay", look)


def test_reconciles_restarts_and_a_second_apply_change_no_resource_version(
    namespaced: LiveCluster, proxy: FaultProxy, tmp_path: Path
) -> None:
    cluster, log = namespaced, tmp_path / "operator.log"
    through = replace(cluster, kubeconfig=proxy.kubeconfig(tmp_path / "kubeconfig"))
    resync = {"ATOM_OPERATOR_RESYNC_SECONDS": "1"}
    # Without replicas no pod moves anything by itself.
    stopped = {"replicas": 0, "rollout": {"drainSeconds": 30}}
    with operator(through, log, resync):
        apply(cluster, **stopped)
        cluster.wait("status", lambda: status_is_written(cluster))
        before = settled_versions(cluster, proxy)
        assert {"AtomDeployment/chat", "Deployment/chat", "Service/chat"} <= before.keys()
        done = reconciles(cluster, proxy)
        cluster.wait("two more reconciles", lambda: reconciles(cluster, proxy) >= done + 2)
        assert versions(cluster) == before
        apply(cluster, **stopped)
        assert versions(cluster) == before
    done = reconciles(cluster, proxy)
    with operator(through, log, resync):
        cluster.wait("reconciles by the next", lambda: reconciles(cluster, proxy) >= done + 2)
        assert versions(cluster) == before


def test_a_secret_is_nowhere_but_in_its_secret(
    namespaced: LiveCluster, proxy: FaultProxy, tmp_path: Path
) -> None:
    cluster, log = namespaced, tmp_path / "operator.log"
    through = replace(cluster, kubeconfig=proxy.kubeconfig(tmp_path / "kubeconfig"))
    cluster.kubectl("create", "secret", "generic", "hub", f"--from-literal=token={_CANARY}")
    reference = {"secretKeyRef": {"name": "hub", "key": "token"}}
    model = {"source": "hf://acme/private", "tokenSecretRef": {"name": "hub", "key": "token"}}
    with operator(through, log, {"ATOM_OPERATOR_LOG_LEVEL": "DEBUG"}):
        engine = {"image": _IMAGE, "env": [{"name": "EXTRA", "valueFrom": reference}]}
        apply(cluster, model=model, engine=engine)
        cluster.wait("status", lambda: status_is_written(cluster))
        # A model whose shape is known starts pods.
        known = {**model, "source": "hf://Qwen/Qwen3-0.6B"}
        accelerator = {"type": "cpu", "memory": "16Gi"}
        apply(cluster, model=known, engine=engine, accelerator=accelerator)
        cluster.wait("deployment", lambda: cluster.get("deployment", "chat"))
        cluster.wait("pod", lambda: listed(cluster, "pods") or None)
    for kinds in (_KINDS, "pods", "events"):
        for item in listed(cluster, kinds):
            assert _CANARY not in json.dumps(item), (item["kind"], item["metadata"]["name"])
    assert _CANARY not in log.read_text()
    # It was not even read.
    assert not [seen for seen in proxy.log if "/secrets" in seen.path]
    deployment = cluster.get("deployment", "chat") or {}
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"secretKeyRef": {"name": "hub", "key": "token"}} in [
        item.get("valueFrom") for item in container["env"]
    ]
