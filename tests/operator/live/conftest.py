"""These tests are about one operator process: no other may reconcile what they create."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from devcluster import target
from tests.support.live_cluster import LiveCluster

_OPERATORS = "app.kubernetes.io/name=atom-operator"


@pytest.fixture
def free_port() -> int:
    """A port that nothing listens on."""
    with closing(socket.socket()) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def only_operator(live_cluster: LiveCluster) -> Iterator[None]:
    """Installed operators sleep meanwhile; on somebody's own cluster that is not ours to do."""
    awake = _awake(live_cluster)
    if awake and not target.resolve(os.environ).is_embedded:
        pytest.skip(f"an operator runs in this cluster: {awake[0][0]}/{awake[0][1]}")
    for namespace, name, _ in awake:
        _scale(live_cluster, namespace, name, 0)
    for namespace, _, _ in awake:
        there = replace(live_cluster, namespace=namespace)
        there.wait("end of the installed operator", lambda there=there: not _pods(there))
    yield
    for namespace, name, replicas in awake:
        _scale(live_cluster, namespace, name, replicas)


def _awake(cluster: LiveCluster) -> list[tuple[str, str, int]]:
    columns = "custom-columns=:metadata.namespace,:metadata.name,:spec.replicas"
    listed = cluster.kubectl(
        "get", "deployments", "--all-namespaces", f"--selector={_OPERATORS}",
        "--no-headers", f"--output={columns}",
    ).stdout  # fmt: skip
    rows = [line.split() for line in listed.splitlines()]
    return [(namespace, name, int(count)) for namespace, name, count in rows if int(count)]


def _pods(cluster: LiveCluster) -> str:
    return cluster.kubectl("get", "pods", f"--selector={_OPERATORS}", "--output=name").stdout


def _scale(cluster: LiveCluster, namespace: str, name: str, replicas: int) -> None:
    there = replace(cluster, namespace=namespace)
    there.kubectl("scale", f"deployment/{name}", f"--replicas={replicas}")
