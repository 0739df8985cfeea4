"""Pods of groups that are refused are told, though no condition of their LeaderWorkerSet does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, POD, Kind, Manifest
from atom_operator.integration_values import Site
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.kinds import RESOURCE_QUOTA, STATEFUL_SET
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.operator.builders_operator import atom_deployment, condition, gpu_node

SITE = Site(engine_tensor_parallel=16, engine_multi_node=True)


def _no_pod(cluster: InMemoryCluster) -> None:
    _quota(cluster, "0")


def _no_worker(cluster: InMemoryCluster) -> None:
    _quota(cluster, "1")


def _policy(cluster: InMemoryCluster) -> None:
    def refuses(kind: Kind, item: Manifest) -> str | None:
        return "exceeded quota: not really" if kind == POD else None

    cluster.state.policies.append(refuses)


def _no_stateful_set(cluster: InMemoryCluster) -> None:
    """The controller of groups cannot make what makes their pods."""

    def refuses(kind: Kind, item: Manifest) -> str | None:
        return "exceeded quota: of sets" if kind == STATEFUL_SET else None

    cluster.state.policies.append(refuses)


def _no_set_of_workers(cluster: InMemoryCluster) -> None:
    def refuses(kind: Kind, item: Manifest) -> str | None:
        workers = kind == STATEFUL_SET and "ordinals" in item["spec"]
        return "exceeded quota: of sets" if workers else None

    cluster.state.policies.append(refuses)


def _quota(cluster: InMemoryCluster, pods: str) -> None:
    spec = {"hard": {"pods": pods}}
    cluster.state.create(RESOURCE_QUOTA, {"metadata": {"name": "team"}, "spec": spec})


@pytest.mark.parametrize(
    "refuse", [_no_pod, _no_worker, _policy, _no_stateful_set, _no_set_of_workers]
)
def test_who_refuses_pods_of_a_group_is_told_until_they_are_made(
    refuse: Callable[[InMemoryCluster], None],
) -> None:
    cluster = InMemoryCluster(nodes=[gpu_node("a"), gpu_node("b")])
    refuse(cluster)
    spec = atom_deployment(parallelism={"tensor": 2, "nodes": 2})
    cluster.api.create(ATOM_DEPLOYMENT, spec)
    operator = OperatorClient(cluster, site=SITE)
    cluster.advance(120)
    degraded = condition(cluster.api, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "PodsRefused"), degraded
    assert "exceeded quota" in degraded["message"]
    assert condition(cluster.api, "Ready")["reason"] == "PodsRefused"
    for quota in cluster.state.all(RESOURCE_QUOTA):
        cluster.state.remove(RESOURCE_QUOTA, quota)
    cluster.state.policies.clear()
    cluster.advance(600)
    assert condition(cluster.api, "Ready")["status"] == "True", condition(cluster.api, "Ready")
    assert condition(cluster.api, "Degraded")["status"] == "False"
    operator.close()


def test_a_worker_that_its_node_rejects_again_and_again_is_told_though_its_pods_are_gone() -> None:
    cluster = InMemoryCluster(nodes=[gpu_node("a", 2), gpu_node("b", 2)])
    spec = atom_deployment(
        parallelism={"tensor": 4, "nodes": 2}, accelerator={"type": "amd", "product": "MI300X"}
    )
    cluster.api.create(ATOM_DEPLOYMENT, spec)
    operator = OperatorClient(cluster, site=SITE)
    cluster.advance(300)
    assert condition(cluster.api, "Ready")["status"] == "True"
    worker = cluster.api.find(POD, "chat-0-1")
    cluster.kubelets.rejecting.add(worker["spec"]["nodeName"])
    cluster.kubelets.evict(worker, "The node was low on resource: memory.")
    cluster.advance(300)
    for kind in ("Degraded", "Ready"):
        told = condition(cluster.api, kind)
        assert "chat-0-1" in told["message"], told
        assert "UnexpectedAdmissionError: Allocate failed" in told["message"], told
    cluster.kubelets.rejecting.clear()
    cluster.advance(900)
    assert condition(cluster.api, "Ready")["status"] == "True"
    assert condition(cluster.api, "Degraded")["status"] == "False"
    operator.close()
