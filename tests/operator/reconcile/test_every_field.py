"""Every field of the spec changed and changed back, as Acto does: nothing crashes, nothing stays.

Values are partly such as the API server would refuse: an object stored under an older CRD has them.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from atom_operator.constants import (
    ANNOTATION_APPLIED,
    ANNOTATION_HAD_PLACE,
    ANNOTATION_ROLLOUT_REASON,
)
from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, EVENT, POD
from atom_operator.kinds import REPLICA_SET, SECRET
from tests.support.in_memory_cluster.rollouts import finish_rollout, own_pods
from tests.support.operator.builders_operator import (
    KEY,
    cluster_with,
    condition,
    gpu_node,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.spec_mutations import Mutation, mutations

BASES: dict[str, dict[str, Any]] = {
    "cpu": {"replicas": 2},
    "amd": {
        "model": {"source": "hf://Qwen/Qwen3-8B"},
        "accelerator": {"type": "amd", "product": "MI300X"},
        "replicas": 2,
    },
}
_COUNTERS = ("resourceVersion", "generation", "observedGeneration", "lastTransitionTime")
# The Deployment controller counts rollouts.
_REVISION = "deployment.kubernetes.io/revision"
# The digest of an applied manifest is of the reason for a rollout too, which may differ.
# How the last rollout went, which the first of all differs from.
_OF_THE_ROLLOUT = (ANNOTATION_ROLLOUT_REASON, ANNOTATION_HAD_PLACE)
_NOT_COMPARED = (*_COUNTERS, "uid", "creationTimestamp", ANNOTATION_APPLIED, _REVISION)


async def settle(cluster: FakeCluster) -> None:
    for _ in range(8):
        if (DEPLOYMENT, "default", "chat") in cluster.objects:
            finish_rollout(cluster)
        before = {
            key: item["metadata"].get("resourceVersion") for key, item in cluster.objects.items()
        }
        await reconciler(cluster).reconcile(KEY)
        if before == {
            key: item["metadata"].get("resourceVersion") for key, item in cluster.objects.items()
        }:
            return
    raise AssertionError(f"still writing: {cluster.writes[-12:]}")


def state(cluster: FakeCluster) -> dict[str, Any]:
    """Everything but events, what only counts changes, and how the last rollout went; of pods what
    they are made from. The Secret of replicas stays until its owner goes: the operator has the
    right to create Secrets, and none to read or delete them."""
    result = {
        f"{kind.kind}/{name}": _without_counters(copy.deepcopy(item))
        for (kind, _, name), item in cluster.objects.items()
        if kind not in (EVENT, POD, REPLICA_SET, SECRET)
    }
    made = [(item["metadata"]["annotations"], item["spec"]) for item in own_pods(cluster)]
    result["pods"] = sorted(made, key=repr)
    result["AtomDeployment/chat"]["status"].pop("rollout", None)
    if "ConfigMap/chat-plan" in result:
        plan = json.loads(result["ConfigMap/chat-plan"]["data"].pop("plan.json"))
        result["plan"] = {**plan, "rollout": None}
    if "Deployment/chat" in result:
        del result["Deployment/chat"]["spec"]["strategy"]
        for name in _OF_THE_ROLLOUT:
            result["Deployment/chat"]["metadata"]["annotations"].pop(name, None)
    return result


def _without_counters(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: _without_counters(v) for k, v in node.items() if k not in _NOT_COMPARED}
    if isinstance(node, list):
        return [_without_counters(item) for item in node]
    return node


async def change(cluster: FakeCluster, spec: dict[str, Any]) -> None:
    stored = cluster.find(ATOM_DEPLOYMENT, "chat")
    for name in set(stored["spec"]) - set(spec):
        del stored["spec"][name]
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", **copy.deepcopy(spec))
    await settle(cluster)


def _cases() -> list[Any]:
    """Return every value of every field. `make test` has one of each field, each place in turn."""
    values: dict[str, list[Mutation]] = {}
    for mutation in mutations():
        values.setdefault(mutation.path, []).append(mutation)
    daily = [of_one[turn % len(of_one)] for turn, of_one in enumerate(values.values())]
    return [
        pytest.param(each, id=str(each), marks=() if each in daily else pytest.mark.whole)
        for of_one in values.values()
        for each in of_one
    ]


@pytest.mark.sampled(30)
@pytest.mark.singles
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("mutation", _cases())
async def test_a_field_changed_and_changed_back_leaves_no_trace(
    base: str, mutation: Mutation
) -> None:
    cluster = cluster_with(**BASES[base])
    cluster.nodes = [gpu_node("a", 8)]
    await settle(cluster)
    before = state(cluster)
    spec = copy.deepcopy(cluster.find(ATOM_DEPLOYMENT, "chat")["spec"])
    await change(cluster, mutation.of(spec))
    assert condition(cluster, "Accepted")["observedGeneration"] == 2
    await change(cluster, spec)
    assert state(cluster) == before


def test_every_kind_of_field_is_among_them() -> None:
    paths = {mutation.path for mutation in mutations()}
    assert {"replicas", "template", "model.configRef.name", "rollout.strategy"} <= paths
