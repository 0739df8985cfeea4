"""A replica that may have lost the Lease reads, and writes nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from atom_operator.cluster.errors import TransientError
from atom_operator.cluster.fenced import FencedCluster
from atom_operator.cluster.port import ClusterPort
from atom_operator.constants import LABEL_PROFILE
from atom_operator.domain import DEPLOYMENT, NAMESPACE, SERVICE, ObjectKey
from tests.support.operator.builders_operator import KEY, cluster_with, reconciler

_SERVICE = {
    "metadata": {"name": "chat", "namespace": "default", "labels": {"a": "b"}},
    "spec": {"type": "ClusterIP"},
}
WRITES: dict[str, Callable[[FencedCluster], Any]] = {
    "apply": lambda fenced: fenced.apply(SERVICE, _SERVICE),
    "make": lambda fenced: fenced.make(
        SERVICE, {**_SERVICE, "metadata": {"name": "new", "namespace": "default"}}
    ),
    "replace": lambda fenced: fenced.replace(SERVICE, _SERVICE),
    "delete": lambda fenced: fenced.delete(SERVICE, "default", "chat"),
    "evict": lambda fenced: fenced.evict("default", "chat-1", "uid-1"),
    "apply_status": lambda fenced: fenced.apply_status(KEY, {"replicas": 7}),
    "apply_profile_status": lambda fenced: fenced.apply_profile_status("site", {"waiting": 1}),
    "hand_over_replicas": lambda fenced: fenced.hand_over_replicas(
        DEPLOYMENT, "default", "chat", 1
    ),
}
READS: dict[str, Callable[[FencedCluster], Any]] = {
    "get": lambda fenced: fenced.get(SERVICE, "default", "chat"),
    "get_namespace_labels": lambda fenced: fenced.get_namespace_labels("default"),
    "list_labelled": lambda fenced: fenced.list_labelled(SERVICE, "default", {}),
    "list_if_served": lambda fenced: fenced.list_if_served(SERVICE, "default", {}),
    "list_events": lambda fenced: fenced.list_events("default", "Job", "weights"),
    "list_children": lambda fenced: fenced.list_children(SERVICE, "default"),
    "list_children_by": lambda fenced: fenced.list_children_by(SERVICE, "term"),
    "list_deployments": lambda fenced: fenced.list_deployments(),
    "list_everywhere": lambda fenced: fenced.list_everywhere(SERVICE),
    "list_nodes": lambda fenced: fenced.list_nodes(),
    # Nothing is stored.
    "dry_run": lambda fenced: fenced.dry_run(DEPLOYMENT, _SERVICE),
    "list_placed_pods": lambda fenced: fenced.list_placed_pods(),
}


def test_every_method_of_the_port_is_here() -> None:
    methods = inspect.getmembers(ClusterPort, inspect.isfunction)
    assert {name for name, _ in methods if not name.startswith("_")} == {*WRITES, *READS}


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_passes_only_with_the_lease(name: str) -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(ObjectKey("default", "chat"))
    before = len(cluster.writes)
    with pytest.raises(TransientError, match="does not hold the Lease"):
        await WRITES[name](FencedCluster(cluster, lambda: False))
    assert len(cluster.writes) == before
    await WRITES[name](FencedCluster(cluster, lambda: True))
    assert len(cluster.writes) == before + 1


@pytest.mark.parametrize("name", READS)
async def test_a_read_passes_without_the_lease(name: str) -> None:
    cluster = cluster_with()
    await reconciler(cluster).reconcile(ObjectKey("default", "chat"))
    labelled = {"name": "default", "namespace": "", "labels": {LABEL_PROFILE: "team"}}
    cluster.create(NAMESPACE, {"metadata": labelled})
    assert await READS[name](FencedCluster(cluster, lambda: False)) is not None
