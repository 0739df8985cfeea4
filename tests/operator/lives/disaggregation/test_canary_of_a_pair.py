"""A canary of an AtomDeployment with roles is a pair of its own, which ends with it."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.operator.builders_operator import atom_deployment, gpu_node
from tests.support.operator.fake_cluster import FakeCluster, copied
from tests.support.operator_life.callers import engines_that_serve, option
from tests.support.operator_life.surroundings import GatewayController

_NEW = "registry.test/atom:2"
_SPEC: dict[str, Any] = {
    "accelerator": {"type": "cpu", "memory": "16Gi"},
    "gateway": {"httpRoute": {"parentRefs": [{"name": "gate"}]}},
    "disaggregation": {
        "prefill": {"replicas": 2, "autoscaling": {"method": "HPA", "maxReplicas": 3}},
        "decode": {"replicas": 2},
    },
}


@pytest.mark.parametrize("decision", ["Promote", "Undo"])
def test_a_canary_has_both_roles_and_takes_them_along(decision: str) -> None:
    api = FakeCluster()
    cluster = InMemoryCluster(api, [gpu_node("a", 8), gpu_node("b", 8)])
    operator = OperatorClient(cluster)
    cluster.clients.append(GatewayController(cluster.state).sync)
    manifest = atom_deployment("chat")
    manifest["spec"] |= _SPEC
    canary = {"change": {"engine": {"image": _NEW}}, "weight": 20, "replicas": 1}

    def ask(**changes: Any) -> None:
        manifest["spec"] |= changes
        api.create(ATOM_DEPLOYMENT, copied(manifest))
        cluster.advance(900)

    try:
        ask()
        ask(canary=canary)
        there = {name for kind, _, name in api.objects if kind == ATOM_DEPLOYMENT}
        assert there == {"chat", "chat-prefill", "chat-canary", "chat-canary-prefill"}
        for name in ("chat-canary", "chat-canary-prefill"):
            (pod,) = engines_that_serve(cluster, name)
            assert pod["spec"]["containers"][0]["image"] == _NEW
        front = api.objects[DEPLOYMENT, "default", "chat-canary-frontend"]
        urls = front["spec"]["template"]["spec"]["containers"][0]["args"]
        assert "http://chat-canary-prefill-workers.default.svc:8000" in urls
        ask(canary={**canary, "decision": decision})
        cluster.advance(2000)
        there = {name for kind, _, name in api.objects if kind == ATOM_DEPLOYMENT}
        assert there == {"chat", "chat-prefill"}
        promoted = decision == "Promote"
        for name, role in (("chat", "kv_consumer"), ("chat-prefill", "kv_producer")):
            for pod in engines_that_serve(cluster, name):
                assert (pod["spec"]["containers"][0]["image"] == _NEW) is promoted
                assert role in str(option(pod["spec"], "--kv-transfer-config"))
        assert len(engines_that_serve(cluster, "chat")) == 2
        assert engines_that_serve(cluster, "chat-prefill")
    finally:
        operator.close()
