"""A suspended AtomDeployment has no pods and loses nothing else: beside the controllers of
Deployments, groups and autoscalers, its number of replicas comes back as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    EVENT,
    JOB,
    POD,
    SERVICE,
    VOLUME_CLAIM,
    WORKLOAD_KINDS,
    Manifest,
)
from atom_operator.integration_values import Site, SiteAddresses
from atom_operator.kinds import AUTOSCALER, LEADER_WORKER_SET, PROMETHEUS_RULE, SCALED_OBJECT
from atom_operator.plugin.status_view import status_lines
from atom_operator.plugin.why import Seen, causes
from atom_operator.plugin.why_view import why_lines
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.operator.builders_operator import (
    atom_deployment,
    condition,
    gpu_node,
    ready_records,
)
from tests.support.operator.fake_cluster import FakeCluster

SITE = Site(
    engine_tensor_parallel=16,
    engine_multi_node=True,
    addresses=SiteAddresses(prometheus="http://prometheus.test:9090"),
)
GPU = {"type": "amd", "product": "MI300X"}
MODEL = {"source": "hf://Qwen/Qwen3-8B"}
PAUSED = "autoscaling.keda.sh/paused-replicas"
_DRAIN_SECONDS = 600.0


class World:
    """One AtomDeployment of GPUs on two nodes of eight, with its operator."""

    def __init__(self, *, keda: bool = True, **spec: Any) -> None:
        api = FakeCluster()
        if not keda:
            api.unserved_kinds.add(SCALED_OBJECT)
        self.cluster = InMemoryCluster(api, [gpu_node("a"), gpu_node("b")])
        self.api, self.state = self.cluster.api, self.cluster.state
        self.operator = OperatorClient(self.cluster, site=SITE)
        self.api.create(ATOM_DEPLOYMENT, atom_deployment(**spec))
        self.cluster.advance(_DRAIN_SECONDS)

    def ask(self, **changes: Any) -> None:
        self.api.change_spec(ATOM_DEPLOYMENT, "chat", **changes)

    def suspend(self) -> None:
        self.ask(suspend=True)
        self.cluster.advance(_DRAIN_SECONDS)

    def resume(self) -> None:
        self.ask(suspend=False)
        self.cluster.advance(_DRAIN_SECONDS)

    @property
    def replicas(self) -> int:
        (workload,) = (item for kind in WORKLOAD_KINDS for item in self.state.all(kind))
        return int(workload["spec"]["replicas"])

    def is_told(self, kind: str) -> tuple[str, str]:
        found = condition(self.api, kind)
        return found["status"], found["reason"]


Start = Callable[..., World]


@pytest.fixture
def start() -> Iterator[Start]:
    worlds: list[World] = []

    def begin(**spec: Any) -> World:
        worlds.append(World(**{"model": MODEL, "accelerator": GPU, **spec}))
        return worlds[-1]

    yield begin
    for world in worlds:
        world.operator.close()


GROUPS = {"parallelism": {"tensor": 16, "nodes": 2}}


@pytest.mark.parametrize("shape", [{"replicas": 3}, GROUPS], ids=["pods", "groups"])
def test_pods_go_and_come_back_and_nothing_else_does(start: Start, shape: dict[str, Any]) -> None:
    world = start(**shape)
    pods, replicas = len(world.cluster.pods), world.replicas
    assert pods > 0
    assert world.is_told("Ready") == ("True", "Serving")
    revisions = world.api.names(CONTROLLER_REVISION)
    before = world.api.find(ATOM_DEPLOYMENT, "chat")["status"]
    world.suspend()
    assert world.state.all(POD) == []
    assert world.is_told("Suspended") == ("True", "Suspended")
    assert world.is_told("Ready") == ("False", "Suspended")
    assert world.is_told("Available") == ("False", "Suspended")
    assert world.is_told("Progressing") == ("False", "Complete")
    parent = world.api.find(ATOM_DEPLOYMENT, "chat")
    assert parent["spec"].get("replicas", 1) == replicas
    assert parent["status"]["replicas"] == 0
    for kept in ("url", "revision", "capacity"):
        assert parent["status"][kept] == before[kept]
    assert world.api.names(SERVICE) == ["chat"]
    assert ready_records(world.api), "what was ready last is known when it comes back"
    world.resume()
    assert (len(world.cluster.pods), world.replicas) == (pods, replicas)
    assert world.is_told("Ready") == ("True", "Serving")
    assert world.is_told("Suspended") == ("Absent", "Absent")
    assert parent["status"]["revision"] == before["revision"], "no other pods than before"
    assert len(world.api.names(CONTROLLER_REVISION)) == len(revisions)


def test_pods_drain_as_in_a_scale_down_and_are_told_until_they_end(start: Start) -> None:
    world = start(replicas=2, rollout={"drainSeconds": 300})
    asked_at: list[Manifest] = []

    def while_they_end() -> None:
        asked_at.extend(
            dict(condition(world.api, "Suspended"))
            for pod in world.state.all(POD)
            if pod["metadata"].get("deletionTimestamp")
        )

    world.cluster.settled.append(while_they_end)
    world.suspend()
    assert {(item["status"], item["reason"]) for item in asked_at} == {("False", "Suspending")}
    assert "pods that finish their requests and end: 2" in asked_at[0]["message"]
    assert world.is_told("Suspended") == ("True", "Suspended")


def test_a_suspended_one_is_at_rest_and_gives_its_devices_to_others(start: Start) -> None:
    world = start(replicas=2, parallelism={"tensor": 8})
    other = {"model": MODEL, "accelerator": GPU, "parallelism": {"tensor": 8}}
    manifest = atom_deployment(**other)
    manifest["metadata"] = {**manifest["metadata"], "name": "other", "uid": "uid-of-other"}
    world.api.create(ATOM_DEPLOYMENT, manifest)
    world.cluster.advance(120)
    assert world.cluster.serving("other") == [], "both nodes are full"
    world.suspend()
    assert len(world.cluster.serving("other")) == 1
    written = len(world.api.writes)
    world.cluster.advance(3600)
    assert world.api.writes[written:] == []


def test_a_spec_that_begins_suspended_starts_nothing_but_what_prepares_it(start: Start) -> None:
    world = start(suspend=True, replicas=2)
    assert world.cluster.pods == []
    assert world.is_told("Ready") == ("False", "Suspended")
    assert world.api.names(SERVICE) == ["chat"]
    world.resume()
    assert len(world.cluster.serving("chat")) == 2


def test_weights_are_fetched_and_stay(start: Start) -> None:
    claim = {"metadata": {"name": "models"}, "spec": {"accessModes": ["ReadWriteMany"]}}
    world = start(suspend=True, cache={"weights": {"claim": "models"}})
    world.state.create(VOLUME_CLAIM, claim)
    world.cluster.advance(_DRAIN_SECONDS)
    assert world.state.all(JOB), "fetching takes no device"
    assert world.api.names(VOLUME_CLAIM) == ["models"]
    assert (world.replicas, world.cluster.serving("chat")) == (0, [])
    assert world.is_told("Ready") == ("False", "Suspended")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", ["HPA", "KEDA"])
def test_an_autoscaler_neither_fights_it_nor_goes(start: Start, method: str) -> None:
    scaling = {"method": method, "minReplicas": 2, "maxReplicas": 6}
    monitoring = {"alerts": {}}
    world = start(keda=method == "KEDA", autoscaling=scaling, monitoring=monitoring)
    world.state.load["chat"] = 3.0
    world.cluster.advance(120)
    assert len(world.cluster.serving("chat")) == 3
    kind = SCALED_OBJECT if method == "KEDA" else AUTOSCALER
    uid = world.api.find(kind, "chat")["metadata"]["uid"]
    world.state.load["chat"] = 5.0  # callers go on trying
    world.suspend()
    assert (world.cluster.pods, world.replicas) == ([], 0)
    assert world.is_told("Ready") == ("False", "Suspended")
    assert world.is_told("IntegrationsReady")[0] == "True"
    written = len(world.api.writes)
    world.cluster.advance(3600)
    assert world.api.writes[written:] == []
    assert (world.cluster.pods, world.replicas) == ([], 0)
    annotations = world.api.find(kind, "chat")["metadata"].get("annotations") or {}
    assert annotations.get(PAUSED) == ("0" if method == "KEDA" else None)
    assert "AtomNoReplicaReady" not in str(world.api.find(PROMETHEUS_RULE, "chat"))
    world.resume()
    assert world.api.find(kind, "chat")["metadata"]["uid"] == uid, "it was not made anew"
    assert PAUSED not in (world.api.find(kind, "chat")["metadata"].get("annotations") or {})
    assert len(world.cluster.serving("chat")) == 5, "the load has the number again"
    assert "AtomNoReplicaReady" in str(world.api.find(PROMETHEUS_RULE, "chat"))


def test_what_may_have_no_replicas_waits_for_its_load(start: Start) -> None:
    scaling = {"minReplicas": 0, "maxReplicas": 6, "activationQuery": "vector(1)"}
    world = start(autoscaling=scaling)
    world.state.load["chat"] = 2.0
    world.cluster.advance(120)
    world.suspend()
    assert world.cluster.pods == []
    world.state.load["chat"] = 0.0
    world.resume()
    assert world.cluster.pods == []
    world.state.load["chat"] = 2.0
    world.cluster.advance(120)
    assert len(world.cluster.serving("chat")) == 2


def test_a_change_meanwhile_is_judged_when_pods_run_again(start: Start) -> None:
    world = start(replicas=2)
    good = world.api.find(ATOM_DEPLOYMENT, "chat")["status"]["revision"]
    world.suspend()
    world.ask(engine={"image": "registry.test/atom:bad"})
    world.cluster.advance(_DRAIN_SECONDS)
    assert world.cluster.pods == []
    world.ask(suspend=False)
    world.cluster.advance(4000)
    status = world.api.find(ATOM_DEPLOYMENT, "chat")["status"]
    assert status["revision"] == good, "it never ran, so it was never recorded as ready"
    assert world.is_told("Degraded") == ("True", "RolledBack")
    assert len(world.cluster.serving("chat")) == 2


@pytest.mark.parametrize(
    "refused",
    [{"engine": {"extraArgs": ["--model=x"]}}, {"parallelism": {"tensor": 3}}],
    ids=["an argument of ours", "a size that does not divide"],
)
def test_a_spec_that_is_refused_is_suspended_all_the_same(
    start: Start, refused: dict[str, Any]
) -> None:
    world = start(replicas=2)
    world.ask(suspend=True, **refused)
    world.cluster.advance(_DRAIN_SECONDS)
    assert world.cluster.pods == []
    assert world.is_told("Accepted")[0] == "False"
    assert world.is_told("Suspended") == ("True", "Suspended")
    world.resume()
    assert len(world.cluster.serving("chat")) == 2, "the last spec that was carried out runs"


def test_pods_of_the_other_kind_are_not_kept_for_a_successor_that_never_comes(
    start: Start,
) -> None:
    world = start(parallelism={"tensor": 8})
    world.ask(suspend=True, **GROUPS)
    world.cluster.advance(_DRAIN_SECONDS)
    assert world.state.all(POD) == []
    assert (world.api.names(DEPLOYMENT), world.api.names(LEADER_WORKER_SET)) == ([], ["chat"])


def test_the_operator_may_die_at_each_write_of_it(start: Start) -> None:
    for writes in range(1, 5):
        world = start(replicas=2, autoscaling={"minReplicas": 2, "maxReplicas": 4})
        world.state.load["chat"] = 3.0
        world.cluster.advance(120)
        world.operator.die_after(writes)
        world.suspend()
        assert (world.cluster.pods, world.replicas) == ([], 0), writes
        world.operator.die_after(writes)
        world.resume()
        assert len(world.cluster.serving("chat")) == 3, writes


def test_kubectl_atom_shows_it(start: Start) -> None:
    world = start(replicas=3)
    world.suspend()
    parent = world.api.find(ATOM_DEPLOYMENT, "chat")
    lines = list(status_lines(parent, [], []))
    assert any("0 ready of 0, suspended: 3 to come back" in line for line in lines)
    assert any("ready     False, Suspended" in line for line in lines)
    seen = Seen(parent, [], world.state.all(EVENT), (), world.state.now())
    assert causes(seen) == []
    assert list(why_lines(seen, ())) == ["AtomDeployment default/chat is suspended by its spec"]
