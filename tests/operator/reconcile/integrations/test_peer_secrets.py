"""Servers of one AtomDeployment know each other by a Secret that is made for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from atom_operator.children import naming
from atom_operator.domain import ObjectKey, Owner
from atom_operator.kinds import SECRET
from atom_operator.reconcile.peers.peer_secrets import PeerSecrets
from tests.support.operator.fake_cluster import FakeCluster

KEY = ObjectKey("team", "qwen")
OWNER = Owner(KEY, "uid-1")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
POD = {"spec": {"volumes": [{"name": "peers", "secret": {"secretName": "qwen-peers"}}]}}
MOUNTING: dict[str, dict[str, Any]] = {
    "Deployment": {"spec": {"template": POD}},
    "group": {"spec": {"leaderWorkerTemplate": {"workerTemplate": POD}}},
}


def stored(cluster: FakeCluster) -> dict[str, Any] | None:
    return cluster.objects.get((SECRET, KEY.namespace, naming.peers_name(KEY)))


@pytest.mark.parametrize("kind", MOUNTING)
async def test_the_secret_is_made_once_and_never_again(kind: str) -> None:
    cluster, drawn = FakeCluster(), iter(["first", "second"])
    peers = PeerSecrets(draw=lambda: next(drawn))
    await peers.ensure(cluster, OWNER, [{}, MOUNTING[kind]], NOW)
    made = stored(cluster)
    assert made is not None
    assert made["stringData"] == {"secret": "first"}
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    await peers.ensure(cluster, OWNER, [MOUNTING[kind]], NOW + timedelta(hours=1))
    assert stored(cluster) == made, "another process, or the user, may have made it"


async def test_a_deleted_secret_is_made_anew() -> None:
    cluster, peers = FakeCluster(), PeerSecrets()
    await peers.ensure(cluster, OWNER, [MOUNTING["Deployment"]], NOW)
    first = stored(cluster)
    assert first is not None
    await cluster.delete(SECRET, KEY.namespace, naming.peers_name(KEY))
    await peers.ensure(cluster, OWNER, [MOUNTING["Deployment"]], NOW + timedelta(minutes=1))
    assert stored(cluster) is None, "looked at every ten minutes"
    await peers.ensure(cluster, OWNER, [MOUNTING["Deployment"]], NOW + timedelta(minutes=10))
    again = stored(cluster)
    assert again is not None
    assert again["stringData"] != first["stringData"]
    assert len(again["stringData"]["secret"]) == 64


async def test_without_peers_no_secret_is_made() -> None:
    cluster = FakeCluster()
    await PeerSecrets().ensure(cluster, OWNER, [{"spec": {"template": {"spec": {}}}}], NOW)
    assert stored(cluster) is None
