"""The inference extension's own endpoint picker over the pool that the operator renders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from devcluster import target
from devcluster.neighbours import endpoint_picker as picker
from devcluster.node import network
from devcluster.programs.binaries import plan_build
from devcluster.shell import run
from tests.support.cluster import neighbours, upstream_crds
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.metered_pods import metered_container, publish
from tests.support.cluster.operator_process import operator
from tests.support.cluster.quick_pods import condition, engine_image, suspend, wait_ready

pytestmark = [pytest.mark.cluster, pytest.mark.neighbour, pytest.mark.usefixtures("only_operator")]

QUESTIONS = 6
IDLE = {"atom_requests_waiting": 0, "atom_requests_running": 0, "atom_kv_cache_usage_ratio": 0}
BUSY = {"atom_requests_waiting": 16, "atom_requests_running": 8, "atom_kv_cache_usage_ratio": 0.9}


@pytest.fixture(scope="module")
def pool(
    live_cluster: LiveCluster, only_operator: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveCluster]:
    """Two pods of a model behind the picker, which is started for this pool of this namespace."""
    upstream_crds.install(live_cluster)
    neighbours.ensure("endpoint-picker")
    cluster = replace(live_cluster, namespace=picker.NAMESPACE)
    image = engine_image(cluster)
    with operator(cluster, tmp_path_factory.mktemp("log") / "operator.log"):
        model = neighbours.quick_model(
            image,
            container=metered_container(**IDLE),
            replicas=2,
            gateway={"inferencePool": {"name": "picker"}},
        )
        neighbours.apply(cluster, model)
        wait_ready(cluster)
        yield cluster
        cluster.kubectl("delete", "atomd", picker.POOL)


def pods(cluster: LiveCluster) -> dict[str, str]:
    """Name → address of the ready pods."""
    selector = "--selector=serving.atom.dev/deployment=chat"
    names = cluster.kubectl("get", "pods", selector, "--output=name").stdout.split()
    found = [cluster.get(*name.split("/")) for name in names]
    return {
        pod["metadata"]["name"]: f"{pod['status']['podIP']}:8000"
        for pod in found
        if pod
        for item in pod["status"]["conditions"]
        if item["type"] == "Ready" and item["status"] == "True"
    }


def chosen() -> set[str]:
    """Where a gateway would send requests."""
    settings = target.resolve(os.environ).settings
    client = plan_build(picker.GROUP, settings.cache / "bin").outputs[picker.CLIENT]
    address = f"{network.uplink(settings.instance).node_address}:{picker.PORT}"
    return set(run([client, address, str(QUESTIONS), "chat"]).split())


def test_the_extension_takes_the_pool(pool: LiveCluster) -> None:
    assert condition(pool, "IntegrationsReady")["status"] == "True"
    assert pool.get("inferencepool", picker.POOL) is not None


@pytest.mark.slow
def test_requests_go_to_pods_that_serve(pool: LiveCluster) -> None:
    addresses = set(pods(pool).values())
    assert len(addresses) == 2
    pool.wait("a choice", lambda: chosen() <= addresses, seconds=60)


@pytest.mark.slow
def test_a_pod_with_a_queue_is_spared(pool: LiveCluster) -> None:
    for busy, address in pods(pool).items():
        (idle,) = set(pods(pool)) - {busy}
        publish(pool, busy, **BUSY)
        publish(pool, idle, **IDLE)
        others = set(pods(pool).values()) - {address}
        pool.wait("the idle pod alone", lambda others=others: chosen() == others, seconds=60)


@pytest.mark.slow
def test_a_pod_that_stops_serving_is_left_out(pool: LiveCluster) -> None:
    gone, stays = pods(pool)
    publish(pool, gone, down=1)
    pool.wait("one ready pod", lambda: set(pods(pool)) == {stays}, seconds=120)
    expected = set(pods(pool).values())
    pool.wait("the other pod alone", lambda: chosen() == expected, seconds=60)


@pytest.mark.slow
def test_pods_that_come_back_are_chosen_again(pool: LiveCluster) -> None:
    suspend(pool, True)
    pool.wait("the end of the last pod", lambda: not pods(pool))
    assert pool.get("inferencepool", picker.POOL) is not None
    suspend(pool, False)
    addresses = set(pods(pool).values())
    assert len(addresses) == 2
    pool.wait("a choice among them", lambda: chosen() <= addresses, seconds=60)
