"""A day of a GPU model under an ideal autoscaler: the ceiling that the operator sets is what the
nodes hold, no replica is ever stopped by it, and nothing is asked for that cannot be placed.

The load is generated, so are the neighbours that come and go on the same nodes and the changes of
the spec in between. After every moment the ceiling is compared with the nodes as they are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, EVENT, POD, Manifest
from atom_operator.integration_values import Site, SiteAddresses
from atom_operator.kinds import AUTOSCALER, SCALED_OBJECT
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.in_memory_cluster.state import is_terminal
from tests.support.operator.builders_operator import atom_deployment, gpu_node, gpu_pod
from tests.support.operator.fake_cluster import FakeCluster

GPU = "amd.com/gpu"
DAY_HOURS, SLICE_HOURS = 24, 2  # in the long suite, and daily
# Nodes and pods are looked at once a minute, and a replica takes some seconds to end.
_KNOWN_AFTER_SECONDS = 150.0
_PER_NODE = 8


class Day:
    """One model, its nodes and its load from a seed."""

    def __init__(self, seed: int, method: str) -> None:
        self.draw = random.Random(seed)
        self.devices = self.draw.choice((1, 2, 4, 8))
        self.most = self.draw.choice((2, 6, 40))
        names = "abcdefgh"[: self.draw.randint(2, 8)]
        self.nodes = [gpu_node(name, _PER_NODE) for name in names]
        api = FakeCluster()
        if method == "HPA":
            api.unserved_kinds.add(SCALED_OBJECT)
        self.cluster = InMemoryCluster(api, self.nodes)
        self.neighbours = 0
        scaling = {"method": method, "minReplicas": 1, "maxReplicas": self.most}
        spec: dict[str, Any] = {
            "model": {"source": "hf://Qwen/Qwen3-8B"},
            "accelerator": {"type": "amd", "product": "MI300X"},
            "parallelism": {"tensor": self.devices},
            "autoscaling": scaling,
        }
        api.create(ATOM_DEPLOYMENT, atom_deployment(**spec))
        site = Site(addresses=SiteAddresses(prometheus="http://prometheus.test:9090"))
        self.operator = OperatorClient(self.cluster, site=site)

    @property
    def ceiling(self) -> int:
        """What the operator lets the autoscaler ask for at most."""
        own = self.cluster.state.all(SCALED_OBJECT)
        if own:
            return int(own[0]["spec"]["maxReplicaCount"])
        (hpa,) = self.cluster.state.all(AUTOSCALER)
        return int(hpa["spec"]["maxReplicas"])

    @property
    def places(self) -> int:
        """Replicas that the nodes hold beside their neighbours, counted without the operator."""
        taken = dict.fromkeys((node["metadata"]["name"] for node in self.nodes), 0)
        for pod in self.cluster.state.all(POD):
            if pod["metadata"]["name"].startswith("neighbour") and not is_terminal(pod):
                limits = pod["spec"]["containers"][0]["resources"]["limits"]
                taken[pod["spec"]["nodeName"]] += int(limits[GPU])
        return sum((_PER_NODE - used) // self.devices for used in taken.values())

    def wanted(self) -> int:
        return max(1, min(self.most, self.places))

    def live(self, hours: int) -> Iterator[str]:
        """So much of a day in steps; each says what has just happened."""
        self.cluster.advance(600)
        yield "the start"
        end = self.cluster.state.time + hours * 3600
        while self.cluster.state.time < end:
            happening = self.draw.choices(
                (self.load_moves, self.neighbour_comes, self.neighbour_goes, self.spec_changes),
                (12, 2, 2, 1),
            )[0]
            yield happening()

    def load_moves(self) -> str:
        load = self.draw.uniform(0, 1.3 * self.most)
        self.cluster.state.load["chat"] = load
        self.cluster.advance(self.draw.choice((20, 90, 600, 1800)))
        return f"a load of {load:.1f} replicas"

    def neighbour_comes(self) -> str:
        node = self.draw.choice(self.nodes)
        free = self.free(node)
        if not free:
            return "a full node"
        self.neighbours += 1
        amount = self.draw.randint(1, free)
        name = f"neighbour-{self.neighbours}"
        pod = gpu_pod(name, node["metadata"]["name"], amount)
        pod["metadata"]["uid"] = f"uid-{10**6 + self.neighbours}"
        self.cluster.api.put_pod(pod)
        self.cluster.advance(_KNOWN_AFTER_SECONDS)
        return f"{name} with {amount} on {node['metadata']['name']}"

    def neighbour_goes(self) -> str:
        pods = [
            pod
            for pod in self.cluster.state.all(POD)
            if pod["metadata"]["name"].startswith("neighbour")
        ]
        if pods:
            self.cluster.state.remove(POD, self.draw.choice(pods))
        self.cluster.advance(_KNOWN_AFTER_SECONDS)
        return "a neighbour has gone"

    def spec_changes(self) -> str:
        length = self.draw.choice((1024, 2048, 4096))
        self.cluster.api.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxModelLen": length})
        self.cluster.advance(self.draw.choice((60, 900)))
        return "other pods are asked for"

    def free(self, node: Manifest) -> int:
        name = node["metadata"]["name"]
        used = 0
        for pod in self.cluster.state.all(POD):
            if pod["spec"].get("nodeName") == name and not is_terminal(pod):
                resources = pod["spec"]["containers"][0]["resources"]
                used += int(resources["limits"][GPU])
        return _PER_NODE - used


def _live_a_day(seed: int, method: str, hours: int = DAY_HOURS) -> None:
    day = Day(seed, method)
    state = day.cluster.state
    held_since = state.time
    places = day.wanted()
    try:
        for happening in day.live(hours):
            why = f"seed {seed}, {state.time:.0f} s, {happening}"
            if day.wanted() != places:
                places, held_since = day.wanted(), state.time
            if state.time - held_since >= _KNOWN_AFTER_SECONDS or happening == "the start":
                assert day.ceiling == places, why
            workload = day.cluster.api.find(DEPLOYMENT, "chat")
            assert workload["spec"]["replicas"] <= max(day.ceiling, 1), why
        _nothing_was_stopped_by_the_ceiling(day)
        state.load["chat"] = 100.0  # at the end everything is wanted at once
        day.cluster.advance(3600)
        own = [pod for pod in day.cluster.pods if not pod["metadata"]["name"].startswith("neigh")]
        assert len(own) == day.wanted()
        assert len(day.cluster.serving("chat")) == day.wanted(), "asked for, and without a node"
    finally:
        day.operator.close()


def _nothing_was_stopped_by_the_ceiling(day: Day) -> None:
    events = day.cluster.state.all(EVENT)
    bound = [item for item in events if "reason: bounds" in str(item.get("message"))]
    assert not bound, bound


@pytest.mark.parametrize("method", ["HPA", pytest.param("KEDA", marks=pytest.mark.whole)])
@pytest.mark.parametrize("seed", [1])
def test_the_ceiling_is_what_the_nodes_hold(seed: int, method: str) -> None:
    _live_a_day(seed, method, SLICE_HOURS)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["HPA", "KEDA"])
@pytest.mark.parametrize("seed", range(100, 150))
def test_the_ceiling_is_what_the_nodes_hold_on_a_hundred_days(seed: int, method: str) -> None:
    _live_a_day(seed, method)
