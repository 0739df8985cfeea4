"""These tests are about one operator process: no other may reconcile what they create."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import pytest

from devcluster import target
from tests.support.cluster.live_cluster import LiveCluster

_OPERATORS = "app.kubernetes.io/name=atom-operator"


@pytest.fixture
def free_port() -> int:
    """A port that nothing listens on."""
    with closing(socket.socket()) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Sleeper:
    """An installed operator's Deployment, and how many replicas it has when it is awake."""

    namespace: str
    name: str
    replicas: int


@pytest.fixture(scope="session")
def sleepers(live_cluster: LiveCluster) -> Iterator[list[Sleeper]]:
    """Who sleeps at the moment; in the end none, however the run ends."""
    found: list[Sleeper] = []
    yield found
    _wake(live_cluster, found)


@pytest.fixture(scope="module")
def only_operator(
    live_cluster: LiveCluster, sleepers: list[Sleeper], request: pytest.FixtureRequest
) -> Iterator[None]:
    """Installed operators sleep meanwhile, and on through modules that follow and want it too: one
    takes seconds to start and to end. On a user's own cluster that is not ours to do."""
    awake = _awake(live_cluster)
    if awake and not target.resolve(os.environ).is_embedded:
        pytest.skip(f"an operator runs in this cluster: {awake[0].namespace}/{awake[0].name}")
    sleepers += awake
    for one in awake:
        _scale(live_cluster, one, 0)
    for one in awake:
        there = replace(live_cluster, namespace=one.namespace)
        there.wait("end of the installed operator", lambda there=there: not _pods(there))
    yield
    if not _is_wanted_next(request):
        _wake(live_cluster, sleepers)


def _is_wanted_next(request: pytest.FixtureRequest) -> bool:
    items = request.session.items
    last = max(number for number, item in enumerate(items) if item.path == request.path)
    return any("only_operator" in item.fixturenames for item in items[last + 1 : last + 2])


def _wake(cluster: LiveCluster, sleepers: list[Sleeper]) -> None:
    while sleepers:
        one = sleepers.pop()
        _scale(cluster, one, one.replicas)


def _awake(cluster: LiveCluster) -> list[Sleeper]:
    columns = "custom-columns=:metadata.namespace,:metadata.name,:spec.replicas"
    listed = cluster.kubectl(
        "get", "deployments", "--all-namespaces", f"--selector={_OPERATORS}",
        "--no-headers", f"--output={columns}",
    ).stdout  # fmt: skip
    rows = [line.split() for line in listed.splitlines()]
    return [Sleeper(namespace, name, int(count)) for namespace, name, count in rows if int(count)]


def _pods(cluster: LiveCluster) -> str:
    return cluster.kubectl("get", "pods", f"--selector={_OPERATORS}", "--output=name").stdout


def _scale(cluster: LiveCluster, one: Sleeper, replicas: int) -> None:
    there = replace(cluster, namespace=one.namespace)
    there.kubectl("scale", f"deployment/{one.name}", f"--replicas={replicas}")
