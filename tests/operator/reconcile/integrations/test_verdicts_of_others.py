"""What other controllers say of our objects reaches our conditions, in their words; and two of our
own routes that ask for the same requests are both told."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, DISRUPTION_BUDGET, VOLUME_CLAIM, ObjectKey
from atom_operator.integration_values import Site
from atom_operator.kinds import (
    AUTOSCALER,
    GATEWAY,
    HTTP_ROUTE,
    INFERENCE_POOL,
    POD_MONITOR,
    PROMETHEUS_RULE,
    SCALED_OBJECT,
    Kind,
)
from atom_operator.reconcile.reconciler import Reconciler
from tests.support.cluster.gateways import a_gateway, says, take_up_route
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    atom_deployment,
    cluster_with,
    condition,
    gpu_node,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster

PROMETHEUS = {"serverAddress": "http://p.test:9090"}
SCALING = {"maxReplicas": 3, "minReplicas": 1}
ROUTE = {"httpRoute": {"parentRefs": [{"name": "gate"}]}}
EVERYTHING: dict[str, Any] = {
    "replicas": 2,
    "gateway": {**ROUTE, "inferencePool": {"name": "picker"}},
    "monitoring": {"podMonitor": {}, "alerts": {}},
}
PARENT = {"parentRef": {"name": "gate"}}
BINDING = {"resource": "prometheuses", "namespace": "monitoring", "name": "k8s"}
# Of each kind: the spec that asks for it, where its verdicts are, the type that counts, and whether
# callers come by it.
PLACES: dict[Kind, tuple[dict[str, Any], str, dict[str, Any], str, bool]] = {
    AUTOSCALER: ({"autoscaling": {**SCALING, "method": "HPA"}}, "", {}, "ScalingActive", False),
    SCALED_OBJECT: (
        {"autoscaling": {**SCALING, "method": "KEDA", "prometheus": PROMETHEUS}},
        "",
        {},
        "Ready",
        False,
    ),
    HTTP_ROUTE: ({}, "parents", PARENT, "Accepted", True),
    INFERENCE_POOL: ({}, "parents", PARENT, "ResolvedRefs", True),
    POD_MONITOR: ({}, "bindings", BINDING, "Accepted", False),
    PROMETHEUS_RULE: ({}, "bindings", BINDING, "Accepted", False),
    DISRUPTION_BUDGET: ({}, "", {}, "DisruptionAllowed", False),
}


async def serving(**changes: Any) -> tuple[FakeCluster, Reconciler]:
    """All replicas serve, and the route is taken up."""
    cluster = cluster_with(**{**EVERYTHING, **changes})
    cluster.create(GATEWAY, a_gateway())
    operator = reconciler(cluster)
    await operator.reconcile(KEY)
    take_up_route(cluster)
    finish_rollout(cluster)
    for _ in range(2):  # an autoscaler comes with the pass after its target's
        await operator.reconcile(KEY)
    return cluster, operator


def put(cluster: FakeCluster, kind: Kind, item: dict[str, Any]) -> None:
    _, under, holder, _, _ = PLACES[kind]
    stored = cluster.find(kind, "chat")
    stored["status"] = (
        {under: [{**holder, "conditions": [item]}]} if under else {"conditions": [item]}
    )
    cluster.touch(stored)


@pytest.mark.parametrize("kind", PLACES, ids=lambda kind: kind.kind)
async def test_a_refusal_is_told_in_its_controllers_words(kind: Kind) -> None:
    changes, _, _, name, for_callers = PLACES[kind]
    cluster, operator = await serving(**changes)
    ready = condition(cluster, "Ready")
    assert ready["status"] == "True", ready
    put(cluster, kind, says(name, "False", "SyncFailed", "the moon is wrong"))
    await operator.reconcile(KEY)
    told = condition(cluster, "IntegrationsReady")
    assert told["status"] == "False"
    assert f"{kind.kind} chat" in told["message"]
    assert f"{name}=False, SyncFailed: the moon is wrong" in told["message"]
    ready = condition(cluster, "Ready")
    assert ready["status"] == ("False" if for_callers else "True")
    if for_callers:
        assert ready["reason"] == "RouteNotReady"
        assert "the moon is wrong" in ready["message"]
    put(cluster, kind, says(name, "True", "Fine", ""))
    await operator.reconcile(KEY)
    assert condition(cluster, "Ready")["status"] == "True"
    assert condition(cluster, "IntegrationsReady")["status"] == "True"


@pytest.mark.parametrize("kind", PLACES, ids=lambda kind: kind.kind)
async def test_what_is_said_of_an_older_version_or_of_something_else_counts_in_nothing(
    kind: Kind,
) -> None:
    changes, _, _, name, _ = PLACES[kind]
    cluster, operator = await serving(**changes)
    cluster.find(kind, "chat")["metadata"]["generation"] = 7
    for item in (
        says(name, "False", "SyncFailed", "of old", observedGeneration=6),
        says("SomethingElse", "False", "SyncFailed", "of something else"),
        says(name, "Unknown", "Pending", "waiting for a controller"),
    ):
        put(cluster, kind, item)
        await operator.reconcile(KEY)
        assert condition(cluster, "Ready")["status"] == "True", item
        assert condition(cluster, "IntegrationsReady")["status"] == "True", item


async def test_a_gateway_that_does_not_exist_is_what_callers_meet() -> None:
    route = {"httpRoute": {"parentRefs": [{"name": "nowhere", "namespace": "gates"}]}}
    cluster = cluster_with(gateway=route)
    operator = reconciler(cluster)
    await operator.reconcile(KEY)
    finish_rollout(cluster)
    await operator.reconcile(KEY)
    for kind in ("IntegrationsReady", "Ready"):
        told = condition(cluster, kind)
        assert (told["status"], told["reason"]) == ("False", "RouteNotReady")
        assert "Gateway gates/nowhere does not exist" in told["message"]
    cluster.create(GATEWAY, a_gateway("nowhere", "gates"))
    await operator.reconcile(KEY)
    told = condition(cluster, "IntegrationsReady")
    assert told["status"] == "Unknown"
    assert "no controller has taken it up for Gateway gates/nowhere" in told["message"]


class Two:
    """Two AtomDeployments, `chat` and then `code`, behind one Gateway; `woken` are told of."""

    def __init__(self, **routes: dict[str, Any]) -> None:
        self.cluster = cluster_with(gateway={"httpRoute": self._route(routes.get("chat"))})
        other = atom_deployment(gateway={"httpRoute": self._route(routes.get("code"))})
        other["metadata"] |= {"name": "code", "uid": "uid-of-code"}
        self.cluster.create(ATOM_DEPLOYMENT, other)
        self.cluster.create(GATEWAY, a_gateway())
        self.woken: list[ObjectKey] = []
        made = reconciler(self.cluster)
        self.operator = Reconciler(
            self.cluster, made.engines, made.decider, made.clock, wake=self.woken.append
        )

    def _route(self, more: dict[str, Any] | None) -> dict[str, Any]:
        return {"parentRefs": [{"name": "gate"}], **(more or {})}

    async def passes(self) -> None:
        for _ in range(2):
            for name in ("chat", "code"):
                await self.operator.reconcile(ObjectKey("default", name))
                take_up_route(self.cluster, name)
                finish_rollout(self.cluster, name)

    def told(self, name: str, kind: str) -> dict[str, Any]:
        conditions = self.cluster.find(ATOM_DEPLOYMENT, name)["status"]["conditions"]
        return next(item for item in conditions if item["type"] == kind)


async def test_two_routes_for_the_same_requests_are_told_on_both() -> None:
    two = Two()
    await two.passes()
    older, newer = two.told("chat", "IntegrationsReady"), two.told("code", "IntegrationsReady")
    for told in (older, newer):
        assert (told["status"], told["reason"]) == ("False", "RoutesCollide")
        assert "requests to /v1 at Gateway default/gate" in told["message"]
        assert "matches: [Path, Header]" in told["message"]
    assert "default/code too; this one is older and gets them" in older["message"]
    assert "default/chat too; default/chat gets them" in newer["message"]
    # Both can be called by name all the same.
    assert two.told("code", "Ready")["status"] == "True"
    assert ObjectKey("default", "chat") in two.woken, "it was told when the other came"


async def test_a_model_that_no_request_reaches_is_not_ready() -> None:
    two = Two(chat={"matches": ["All"]}, code={"matches": ["All"]})
    await two.passes()
    assert two.told("chat", "Ready")["status"] == "True"
    told = two.told("code", "Ready")
    assert (told["status"], told["reason"]) == ("False", "RouteNotReady")
    assert "default/chat gets them" in told["message"]


@pytest.mark.parametrize(
    ("chat", "code", "collide"),
    [
        ({}, {"hostnames": ["code.test"]}, False),
        ({"hostnames": ["a.test"]}, {"hostnames": ["b.test"]}, False),
        ({"hostnames": ["a.test", "b.test"]}, {"hostnames": ["B.test"]}, True),
        ({}, {"matches": ["Path", "Header"]}, True),  # both serve a model of the same name
        ({}, {"matches": ["Path"]}, False),
        ({"matches": ["Header"]}, {"matches": ["All", "Path"]}, False),
        ({}, {"parentRefs": [{"name": "other"}]}, False),
        ({"parentRefs": [{"name": "gate", "sectionName": "a"}]}, {}, True),
        (
            {"parentRefs": [{"name": "gate", "sectionName": "a"}]},
            {"parentRefs": [{"name": "gate", "sectionName": "b"}]},
            False,
        ),
    ],
)
async def test_routes_collide_where_a_request_could_go_to_either(
    chat: dict[str, Any], code: dict[str, Any], collide: bool
) -> None:
    two = Two(chat=chat, code=code)
    await two.passes()
    for name in ("chat", "code"):
        assert (two.told(name, "IntegrationsReady")["reason"] == "RoutesCollide") == collide, name


async def test_the_end_of_a_collision_is_told_to_the_other() -> None:
    two = Two()
    await two.passes()
    two.woken.clear()
    two.cluster.remove_with_children("code")
    await two.operator.reconcile(ObjectKey("default", "code"))
    assert two.woken == [ObjectKey("default", "chat")]
    await two.operator.reconcile(KEY)
    assert two.told("chat", "IntegrationsReady")["status"] == "True"


def two_with(changes: dict[str, Any]) -> tuple[FakeCluster, Reconciler]:
    cluster = cluster_with(**changes)
    other = atom_deployment(**changes)
    other["metadata"] |= {"name": "code", "uid": "uid-of-code"}
    cluster.create(ATOM_DEPLOYMENT, other)
    cluster.nodes = [gpu_node("a"), gpu_node("b")]
    site = Site(template_forbidden=frozenset(), engine_multi_node=True)
    return cluster, reconciler(cluster, site=site)


def mounted(claim: str) -> dict[str, Any]:
    volume = {"name": "cache", "persistentVolumeClaim": {"claimName": claim}}
    return {"template": {"spec": {"volumes": [volume]}}}


HOST_PORT = {"name": "engine", "ports": [{"containerPort": 1, "hostPort": 80}]}
ON_PORT: dict[str, Any] = {"template": {"spec": {"containers": [HOST_PORT]}}}
SIDECAR = {
    "name": "proxy",
    "image": "proxy:1",
    "restartPolicy": "Always",
    "ports": [{"containerPort": 1, "hostPort": 81}],
}
PROXIED: dict[str, Any] = {"template": {"spec": {"initContainers": [SIDECAR]}}}
GROUPS: dict[str, Any] = {"parallelism": {"tensor": 2, "nodes": 2}}


@pytest.mark.parametrize(
    ("changes", "modes", "words"),
    [
        (mounted("big"), "ReadWriteOnce", "claim big (ReadWriteOnce) is mounted by default/{} too"),
        (mounted("big"), "ReadWriteOncePod", "one pod can mount it"),
        (mounted("big"), "ReadWriteMany", None),
        (ON_PORT, "", "host port 80 is asked for by default/{} too"),
        (PROXIED, "", "host port 81 is asked for by default/{} too"),
        (
            {**mounted("big"), **GROUPS},
            "ReadWriteOnce",
            "claim big (ReadWriteOnce) is mounted by default/{} too",
        ),
        ({**ON_PORT, **GROUPS}, "", "host port 80 is asked for by default/{} too"),
    ],
)
async def test_two_that_cannot_run_beside_each_other_are_both_told(
    changes: dict[str, Any], modes: str, words: str | None
) -> None:
    cluster, operator = two_with(changes)
    claim = {"metadata": {"name": "big", "namespace": "default"}, "spec": {"accessModes": [modes]}}
    cluster.create(VOLUME_CLAIM, claim)
    names = ("chat", "code")
    for name in (*names, *names):
        await operator.reconcile(ObjectKey("default", name))
    for name, other in (names, names[::-1]):
        conditions = cluster.find(ATOM_DEPLOYMENT, name)["status"]["conditions"]
        accepted = next(item for item in conditions if item["type"] == "Accepted")
        assert accepted["status"] == "True"
        if words is None:
            assert "too, and" not in accepted["message"]
        else:
            assert words.format(other) in accepted["message"]
