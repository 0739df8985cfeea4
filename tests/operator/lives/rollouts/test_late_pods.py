"""Pods that a ReplicaSet makes late, after their revision was replaced, are known by their spec:
frontends and routes lead callers to the model that such a pod serves."""

from __future__ import annotations

import random
from typing import Any

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, CONTROLLER_REVISION, DEPLOYMENT
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import KEY, atom_deployment, pod_of, reconciler
from tests.support.operator.fake_cluster import FakeCluster, copied
from tests.support.operator_life.callers import misled

_ROUTE = {"httpRoute": {"parentRefs": [{"name": "gate"}], "matches": ["Header"]}}
_MOST_EDITS = 3  # of which a Deployment keeps the ReplicaSets


async def look(cluster: FakeCluster) -> None:
    for _ in range(3):
        await reconciler(cluster).reconcile(KEY)


def edit(draw: random.Random, number: int) -> dict[str, Any]:
    return draw.choice(
        [
            {"engine": {"image": f"registry.test/atom:{number}"}},
            {"engine": {"maxModelLen": 512 * (number + 1)}},
            {"model": {"source": "hf://Qwen/Qwen3-0.6B", "servedName": f"name-{number}"}},
        ]
    )


@pytest.mark.parametrize("seed", range(12))
async def test_callers_find_a_pod_of_any_revision_that_was_replaced_before_it_came(
    seed: int,
) -> None:
    """While no pod comes the spec is edited; then the ReplicaSet of a drawn revision makes one."""
    draw = random.Random(seed)
    world = InMemoryCluster(FakeCluster())
    cluster = world.api
    cluster.create(ATOM_DEPLOYMENT, atom_deployment(frontend={}, gateway=_ROUTE))
    made = []
    for number in range(1 + draw.randint(1, _MOST_EDITS)):
        if number:
            cluster.change_spec(ATOM_DEPLOYMENT, "chat", **edit(draw, number))
        await look(cluster)
        made.append(copied(cluster.find(DEPLOYMENT, "chat")))
    late = pod_of(draw.choice(made), "chat-late", "a")
    cluster.put_pod(late)
    await look(cluster)
    assert misled(world) == []


async def test_specs_of_replaced_revisions_are_forgotten_once_the_newest_is_complete() -> None:
    cluster = FakeCluster()
    cluster.create(ATOM_DEPLOYMENT, atom_deployment())
    for number in range(6):
        cluster.change_spec(ATOM_DEPLOYMENT, "chat", **edit(random.Random(0), number))
        await look(cluster)
    kept = _specs(cluster)
    assert len(kept) == _MOST_EDITS, kept
    finish_rollout(cluster)
    await look(cluster)
    assert _specs(cluster) == []


def _specs(cluster: FakeCluster) -> list[str]:
    """The records of other revisions than the workload's."""
    names = [name for kind, _, name in cluster.objects if kind == CONTROLLER_REVISION]
    return [name for name in names if name.endswith("-spec")]
