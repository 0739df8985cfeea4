"""Whoever sets the number of replicas again and again past the AtomDeployment is told, with the
remedy; a change by hand that is put right once is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, EVENT
from tests.support.in_memory_cluster.autoscalers import scale
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.operator.builders_operator import atom_deployment, condition, gpu_node
from tests.support.operator_life.others_at_work import ForeignAutoscaler


class Fought:
    """`chat` on the CPU, without an autoscaler of its own."""

    def __init__(self) -> None:
        self.cluster = InMemoryCluster(nodes=[gpu_node("a")])
        self.operator = OperatorClient(self.cluster)
        self.cluster.api.create(ATOM_DEPLOYMENT, atom_deployment(replicas=1))
        self.cluster.advance(300)

    def said(self, kind: str) -> dict[str, Any]:
        return dict(condition(self.cluster.api, kind))


@pytest.fixture
def fought() -> Iterator[Fought]:
    made = Fought()
    yield made
    made.operator.close()


def test_an_autoscaler_that_comes_back_is_named_with_the_remedy(fought: Fought) -> None:
    other = ForeignAutoscaler(fought.cluster, "chat", 3)
    fought.cluster.clients.append(other.look)
    fought.cluster.advance(120)
    for kind, status in (("Degraded", "True"), ("Ready", "False")):
        said = fought.said(kind)
        assert (said["status"], said["reason"]) == (status, "ReplicasContested")
        assert "spec.autoscaling" in said["message"]
        assert "kubectl scale atomd/chat" in said["message"]
    events = [item for key, item in fought.cluster.api.objects.items() if key[0] == EVENT]
    assert any(event["reason"] == "ReplicasContested" for event in events)
    fought.cluster.clients.remove(other.look)
    fought.cluster.advance(1200)
    assert fought.said("Ready")["status"] == "True"
    assert fought.said("Degraded")["reason"] == "AsExpected"


def test_a_change_by_hand_is_put_right_without_a_word(fought: Fought) -> None:
    target = fought.cluster.api.find(DEPLOYMENT, "chat")
    scale(fought.cluster.state, target, 3)
    fought.cluster.advance(300)
    assert len(fought.cluster.serving("chat")) == 1
    assert fought.said("Degraded")["reason"] == "AsExpected"


def test_scaling_the_atomdeployment_is_no_fight(fought: Fought) -> None:
    for replicas in (3, 1, 2, 1):
        fought.cluster.api.change_spec(ATOM_DEPLOYMENT, "chat", replicas=replicas)
        fought.cluster.advance(60)
        assert fought.said("Degraded")["reason"] == "AsExpected"
