"""The operator process and a real API server, with faults between them."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from devcluster import target
from tests.support.cluster.fault_proxy import Fault, FaultProxy, Seen, fault_proxy
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.operator.builders_operator import atom_deployment

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.side_by_side,
    pytest.mark.usefixtures("only_operator"),
]

_IMAGE = "localhost/atom-none:0"
_KINDS = ("serviceaccount", "configmap", "service", "pdb", "deployment", "replicaset", "atomd")


@dataclass(frozen=True)
class Setting:
    """A namespace, and the way to it through the proxy."""

    cluster: LiveCluster
    proxy: FaultProxy
    through_proxy: LiveCluster


@pytest.fixture
def setting(namespaced: LiveCluster, tmp_path: Path) -> Iterator[Setting]:
    if not target.resolve(os.environ).is_embedded:
        pytest.skip("the proxy knows the kubeconfig of the embedded cluster only")
    with fault_proxy(namespaced.kubeconfig) as proxy:
        kubeconfig = proxy.kubeconfig(tmp_path / "kubeconfig")
        yield Setting(namespaced, proxy, replace(namespaced, kubeconfig=kubeconfig))


def apply(cluster: LiveCluster, **changes: Any) -> None:
    manifest = atom_deployment(**{"engine": {"image": _IMAGE}, "replicas": 2, **changes})
    manifest["metadata"]["namespace"] = cluster.namespace
    cluster.kubectl("apply", "--filename=-", manifest=manifest)


def objects(cluster: LiveCluster) -> dict[str, dict[str, Any]]:
    """What the operator made, by kind and name, without what differs from run to run."""
    result = {}
    for kind in _KINDS:
        listed = cluster.kubectl("get", kind, "--output=name").stdout.split()
        for name in (line.partition("/")[2] for line in listed):
            found = cluster.get(kind, name)
            # Made for every namespace by Kubernetes itself.
            if found is not None and name not in ("default", "kube-root-ca.crt"):
                result[f"{kind}/{name}"] = _comparable(found)
    return result


def _comparable(found: dict[str, Any]) -> dict[str, Any]:
    seen = copy.deepcopy({k: v for k, v in found.items() if k in ("spec", "data", "kind")})
    spec = seen.get("spec", {})
    for allocated in ("clusterIP", "clusterIPs"):
        spec.pop(allocated, None)
    return seen


def reported(cluster: LiveCluster) -> bool:
    """The status is about the latest spec, and the Deployment's controller has begun."""
    parent, child = cluster.get("atomd", "chat"), cluster.get("deployment", "chat")
    if not parent or not child or not parent.get("status"):
        return False
    seen = {item["observedGeneration"] for item in parent["status"]["conditions"]}
    return seen == {parent["metadata"]["generation"]} and bool(child.get("status"))


def settled(cluster: LiveCluster) -> dict[str, dict[str, Any]]:
    cluster.wait("report", lambda: reported(cluster))
    return objects(cluster)


def ours(cluster: LiveCluster, seen: Seen) -> bool:
    return seen.is_write and f"/namespaces/{cluster.namespace}/" in seen.path


@pytest.mark.slow
def test_killed_after_any_of_its_writes_the_successor_finishes_without_duplicates(
    setting: Setting, tmp_path: Path
) -> None:
    cluster, proxy, log = setting.cluster, setting.proxy, tmp_path / "operator.log"
    with operator(setting.through_proxy, log):
        apply(cluster)
        expected = settled(cluster)
    paths = [seen.path for seen in proxy.log if ours(cluster, seen)]
    # The status is the last of a reconcile; what follows depends on how fast pods fail.
    writes = 1 + next(number for number, path in enumerate(paths) if path.endswith("/status"))
    assert writes >= 6
    for number in range(1, writes + 1):
        cluster.kubectl("delete", "atomd", "chat", "--timeout=30s")
        cluster.wait("clean namespace", lambda: not objects(cluster))
        with operator(setting.through_proxy, log) as first:
            count = itertools.count(1)

            def kill(seen: Seen, first: Any = first, count: Any = count, at: int = number) -> None:
                if ours(cluster, seen) and next(count) == at:
                    first.kill()

            proxy.after_write = kill
            apply(cluster)
            first.wait(30)
        proxy.after_write = lambda _: None
        seen_so_far = len(proxy.log)
        with operator(setting.through_proxy, log):
            cluster.wait(
                "reconcile by the successor",
                lambda since=seen_so_far: any(ours(cluster, seen) for seen in proxy.log[since:]),
            )
            assert settled(cluster) == expected, f"killed after write {number} of {writes}"


def test_conflicts_throttling_and_lost_answers_only_delay(setting: Setting, tmp_path: Path) -> None:
    cluster, proxy = setting.cluster, setting.proxy
    with operator(setting.through_proxy, tmp_path / "operator.log"):
        apply(cluster)
        expected = settled(cluster)
        cluster.kubectl("delete", "atomd", "chat", "--timeout=30s")
        cluster.wait("clean namespace", lambda: not objects(cluster))
        # By the number of the write; every attempt gets further than the one before.
        faults = {1: Fault.CONFLICT, 3: Fault.TOO_MANY_REQUESTS, 6: Fault.LOST_ANSWER}
        faults[12] = Fault.UNAVAILABLE
        count = itertools.count(1)
        proxy.on_request = lambda seen: (
            faults.pop(next(count), None) if ours(cluster, seen) else None
        )
        apply(cluster)
        assert settled(cluster) == expected
        assert not faults


def test_a_restart_of_the_api_server_loses_nothing(setting: Setting, tmp_path: Path) -> None:
    cluster, proxy = setting.cluster, setting.proxy
    with operator(setting.through_proxy, tmp_path / "operator.log") as process:
        apply(cluster)
        settled(cluster)
        proxy.down()
        apply(cluster, replicas=3)
        cluster.kubectl("delete", "service", "chat")
        proxy.up()
        cluster.wait("service that came back", lambda: cluster.get("service", "chat"))
        cluster.wait(
            "replicas that were asked for meanwhile",
            lambda: (cluster.get("deployment", "chat") or {})["spec"]["replicas"] == 3,
        )
        assert process.poll() is None


def test_what_no_watch_announces_is_found_by_the_resync(setting: Setting, tmp_path: Path) -> None:
    cluster, proxy = setting.cluster, setting.proxy
    environment = {"ATOM_OPERATOR_RESYNC_SECONDS": "2"}
    proxy.on_request = lambda seen: Fault.UNAVAILABLE if seen.is_watch else None
    with operator(setting.through_proxy, tmp_path / "operator.log", environment):
        apply(cluster)
        settled(cluster)
        cluster.kubectl("delete", "service", "chat")
        cluster.wait("service that came back", lambda: cluster.get("service", "chat"))


def test_no_read_may_be_answered_from_an_old_cache_of_the_api_server(
    setting: Setting, tmp_path: Path
) -> None:
    """resourceVersion=0 is what lets an API server answer from an old cache."""
    cluster, proxy = setting.cluster, setting.proxy
    with operator(setting.through_proxy, tmp_path / "operator.log"):
        apply(cluster)
        settled(cluster)
    reads = [seen for seen in proxy.log if seen.method == "GET" and not seen.is_watch]
    assert len(reads) > 10
    assert not [seen for seen in reads if "resourceVersion" in seen.query]
