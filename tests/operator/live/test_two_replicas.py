"""Two operator processes on one real API server: one reconciles, the other takes over."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devcluster import target
from tests.support.cluster.fault_proxy import fault_proxy
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.operator.builders_operator import atom_deployment

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.side_by_side,
    pytest.mark.usefixtures("only_operator"),
]

_LEASE = "atom-operator"


def replica(cluster: LiveCluster, name: str) -> dict[str, str]:
    return {
        "ATOM_OPERATOR_LEASE": _LEASE,
        "ATOM_OPERATOR_POD_NAMESPACE": cluster.namespace,
        "ATOM_OPERATOR_POD_NAME": name,
    }


def lease(cluster: LiveCluster) -> dict[str, Any]:
    found = cluster.get("lease", _LEASE)
    return {} if found is None else dict(found["spec"])


def apply(cluster: LiveCluster, **changes: Any) -> None:
    # The image does not exist: the rollout stays open for as long as the test wants.
    manifest = atom_deployment(**{"engine": {"image": "localhost/atom-none:0"}, **changes})
    manifest["metadata"]["namespace"] = cluster.namespace
    cluster.kubectl("apply", "--filename=-", manifest=manifest)


def drain_seconds(cluster: LiveCluster) -> int:
    deployment = cluster.get("deployment", "chat") or {}
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return int(arguments[arguments.index("--drain-seconds") + 1])


def test_a_replica_takes_over_a_rollout_when_the_holder_is_killed(
    namespaced: LiveCluster, tmp_path: Path
) -> None:
    cluster = namespaced
    with ExitStack() as stack:
        first = stack.enter_context(
            operator(cluster, tmp_path / "first.log", replica(cluster, "first"))
        )
        cluster.wait("holder", lambda: lease(cluster).get("holderIdentity") == "first")
        stack.enter_context(operator(cluster, tmp_path / "second.log", replica(cluster, "second")))
        cluster.wait(
            "replica that waits",
            lambda: "which first holds" in (tmp_path / "second.log").read_text(),
        )
        apply(cluster, replicas=2)
        cluster.wait("deployment", lambda: cluster.get("deployment", "chat"))
        assert "Ready=" not in (tmp_path / "second.log").read_text()

        apply(cluster, replicas=2, rollout={"drainSeconds": 31})
        cluster.wait("rollout by the first", lambda: drain_seconds(cluster) == 31)
        first.kill()
        first.wait()
        apply(cluster, replicas=2, rollout={"drainSeconds": 32})
        cluster.wait("rollout by the second", lambda: drain_seconds(cluster) == 32)
        assert lease(cluster)["holderIdentity"] == "second"
        assert lease(cluster)["leaseTransitions"] == 1


@pytest.mark.whole  # another replica takes over from one that is killed, above
def test_a_replica_cut_off_from_the_api_server_gives_way_and_stands_by_when_it_is_back(
    namespaced: LiveCluster, tmp_path: Path
) -> None:
    if not target.resolve(os.environ).is_embedded:
        pytest.skip("the proxy knows the kubeconfig of the embedded cluster only")
    cluster, log = namespaced, tmp_path / "first.log"
    with ExitStack() as stack:
        proxy = stack.enter_context(fault_proxy(cluster.kubeconfig))
        cut_off = replace(cluster, kubeconfig=proxy.kubeconfig(tmp_path / "kubeconfig"))
        stack.enter_context(operator(cut_off, log, replica(cluster, "first")))
        cluster.wait("holder", lambda: lease(cluster).get("holderIdentity") == "first")
        stack.enter_context(operator(cluster, tmp_path / "second.log", replica(cluster, "second")))
        cluster.wait(
            "replica that waits", lambda: "which first" in (tmp_path / "second.log").read_text()
        )
        proxy.down()
        cluster.wait("second holder", lambda: lease(cluster).get("holderIdentity") == "second")
        # It had stopped before the other could begin.
        assert "first lost the Lease and stops reconciling" in log.read_text()
        seen = len(proxy.log)
        proxy.up()
        apply(cluster, replicas=2)
        cluster.wait("deployment", lambda: cluster.get("deployment", "chat"))
        cluster.wait("word of the first", lambda: "which second holds" in log.read_text())
        since = proxy.log[seen:]
        assert not [request for request in since if request.is_write or request.is_watch]
        assert lease(cluster)["holderIdentity"] == "second"


def test_a_graceful_end_releases_the_lease_at_once(namespaced: LiveCluster, tmp_path: Path) -> None:
    cluster = namespaced
    with operator(cluster, tmp_path / "only.log", replica(cluster, "only")):
        cluster.wait("holder", lambda: lease(cluster).get("holderIdentity") == "only")
    assert lease(cluster)["holderIdentity"] == ""
    # One that is not released would now last for an hour.
    lasting = '{"spec": {"leaseDurationSeconds": 3600}}'
    cluster.kubectl("patch", "lease", _LEASE, "--type=merge", f"--patch={lasting}")
    with operator(cluster, tmp_path / "next.log", replica(cluster, "next")):
        cluster.wait("next holder", lambda: lease(cluster).get("holderIdentity") == "next")
