"""The API server itself ends and comes back, as it does in every upgrade of a cluster; the operator
goes on, writes nothing that nobody asked for, and follows what is changed afterwards.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atom_operator.handlers.runtime import FOLLOWED
from devcluster import target
from tests.support.cluster.fault_proxy import FaultProxy, fault_proxy
from tests.support.cluster.live_cluster import ROOT, LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.operator.builders_operator import atom_deployment

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("only_operator")]

_CHILDREN = (
    ("service", "chat"),
    ("serviceaccount", "chat"),
    ("configmap", "chat-plan"),
    ("pdb", "chat"),
)


def api_server() -> dict[str, Any]:
    """Its process as the development cluster reports it."""
    command = [sys.executable, "-m", "devcluster", "status", "--json"]
    text = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False).stdout
    (found,) = [item for item in json.loads(text)["components"] if item["name"] == "apiserver"]
    return dict(found)


def end_api_server(cluster: LiveCluster, how: signal.Signals) -> None:
    """Returns once another process answers in its place."""
    before = api_server()
    os.kill(before["pid"], how)

    def is_back() -> bool:
        now = api_server()
        return bool(now["restarts"] > before["restarts"] and now["ready"])

    cluster.wait("API server that came back", is_back)


def versions(cluster: LiveCluster) -> dict[str, str]:
    found = {kind: cluster.get(kind, name) for kind, name in _CHILDREN}
    return {kind: item["metadata"]["resourceVersion"] for kind, item in found.items() if item}


def apply(cluster: LiveCluster, replicas: int) -> None:
    manifest = atom_deployment(engine={"image": "localhost/atom-none:0"}, replicas=replicas)
    manifest["metadata"]["namespace"] = cluster.namespace
    cluster.kubectl("apply", "--filename=-", manifest=manifest)


def reported(cluster: LiveCluster) -> bool:
    parent = cluster.get("atomd", "chat") or {}
    seen = (parent.get("status") or {}).get("observedGeneration")
    return bool(seen == parent["metadata"]["generation"])


def lists_of(proxy: FaultProxy, since: int) -> list[str]:
    reads = [one for one in proxy.log[since:] if one.method == "GET" and not one.is_watch]
    return [one.path for one in reads if "labelSelector" in one.query]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
def test_the_operator_goes_on_when_the_api_server_comes_back(
    namespaced: LiveCluster, tmp_path: Path, how: signal.Signals
) -> None:
    if not target.resolve(os.environ).is_embedded:
        pytest.skip("the API server of a cluster of the user's own is not ours to end")
    cluster = namespaced
    with fault_proxy(cluster.kubeconfig) as proxy:
        through = LiveCluster(
            proxy.kubeconfig(tmp_path / "kubeconfig"), cluster.tools, cluster.namespace
        )
        with operator(through, tmp_path / "operator.log") as process:
            apply(cluster, replicas=2)
            cluster.wait("report", lambda: reported(cluster))
            before, since = versions(cluster), len(proxy.log)
            assert set(before) == {kind for kind, _ in _CHILDREN}

            end_api_server(cluster, how)
            cluster.kubectl("delete", "service", "chat")
            cluster.wait("service that came back", lambda: cluster.get("service", "chat"))
            assert {**versions(cluster), "service": ""} == {**before, "service": ""}
            apply(cluster, replicas=3)
            cluster.wait("report", lambda: reported(cluster))
            assert (cluster.get("deployment", "chat") or {})["spec"]["replicas"] == 3
            assert len(lists_of(proxy, since)) <= 2 * len(FOLLOWED)
            assert process.poll() is None
