"""A value that a user put into an environment variable goes to the pods and to nobody else."""

from __future__ import annotations

import json

import pytest

from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    POD,
)
from atom_operator.kinds import REPLICA_SET
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import KEY, cluster_with, reconciler

CANARY = "hf_canaryB7x0Zq1"


async def test_a_plain_value_is_in_the_pod_template_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    cluster = cluster_with(engine={"env": [{"name": "TOKEN", "value": CANARY}]}, replicas=2)
    for ready in (False, True):
        await reconciler(cluster).reconcile(KEY)
        finish_rollout(cluster, ready=None if ready else 0)
    await reconciler(cluster).reconcile(KEY)
    holders = {kind for (kind, _, _), item in cluster.objects.items() if CANARY in json.dumps(item)}
    made_of_it = {REPLICA_SET, POD}  # by Kubernetes' own controllers
    assert holders == {ATOM_DEPLOYMENT, CONTROLLER_REVISION, DEPLOYMENT} | made_of_it
    assert CANARY not in json.dumps(cluster.find(ATOM_DEPLOYMENT, "chat")["status"])
    deployment = cluster.find(DEPLOYMENT, "chat")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert CANARY not in json.dumps([container.get("args"), container.get("command")])
    assert CANARY not in json.dumps(deployment["metadata"])
    assert CANARY not in caplog.text


async def test_a_wrong_value_is_refused_without_being_repeated() -> None:
    variable = {"name": "TOKEN", "value": CANARY, "valueFrom": {"fieldRef": {"fieldPath": "x"}}}
    broken = {"env": [variable], "extraArgs": [f"--revision={CANARY}"]}
    cluster = cluster_with(engine=broken)
    await reconciler(cluster).reconcile(KEY)
    status = json.dumps(cluster.find(ATOM_DEPLOYMENT, "chat")["status"])
    assert "spec.engine.extraArgs[0]" in status
    assert CANARY not in status
    unparsable = cluster_with(engine={"env": [{"name": 7, "value": {"secret": CANARY}}]})
    await reconciler(unparsable).reconcile(KEY)
    status = json.dumps(unparsable.find(ATOM_DEPLOYMENT, "chat")["status"])
    assert "spec.engine.env" in status
    assert CANARY not in status
