"""`kubectl atom why` begins with the cause, in the words of the one who refused it, and says what
to do next: shown on what goes wrong beside a cluster's controllers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    DEPLOYMENT,
    EVENT,
    JOB,
    POD,
    VOLUME_CLAIM,
    Manifest,
)
from atom_operator.integration_values import Site
from atom_operator.kinds import LEADER_WORKER_SET, REPLICA_SET
from atom_operator.plugin.output import wrapped
from atom_operator.plugin.why import Seen, causes, is_suspended
from atom_operator.plugin.why_view import why_document, why_lines
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.kinds import (
    LIMIT_RANGE,
    RESOURCE_QUOTA,
    STATEFUL_SET,
)
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.operator.builders_operator import atom_deployment, gpu_node
from tests.support.operator.situations import SITUATIONS, situation

SITE = Site(engine_tensor_parallel=16, engine_multi_node=True)
GPU: dict[str, Any] = {"model": {"source": "hf://Qwen/Qwen3-8B"}}
GPU |= {"accelerator": {"type": "amd", "product": "MI300X"}}
HUB: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-0.6B", "revision": "v1"},
    "cache": {"weights": {"claim": "models"}},
    "accelerator": {"type": "cpu", "memory": "16Gi"},
}
_KINDS = (DEPLOYMENT, REPLICA_SET, STATEFUL_SET, LEADER_WORKER_SET, JOB, POD)


class World:
    def __init__(self, **spec: Any) -> None:
        self.cluster = InMemoryCluster(nodes=[gpu_node("a"), gpu_node("b")])
        self.spec = spec
        self.operator = OperatorClient(self.cluster, site=SITE)

    def start(self) -> None:
        self.cluster.api.create(ATOM_DEPLOYMENT, atom_deployment(**self.spec))
        self.cluster.advance(150)

    def seen(self) -> Seen:
        state = self.cluster.state
        objects = [{**item, "kind": kind.kind} for kind in _KINDS for item in state.all(kind)]
        parent = self.cluster.api.find(ATOM_DEPLOYMENT, "chat")
        return Seen(parent, objects, state.all(EVENT), state.all(RESOURCE_QUOTA), state.now())

    def create(self, kind: Any, name: str, **spec: Any) -> None:
        self.cluster.state.create(kind, {"metadata": {"name": name}, "spec": spec})


def test_a_silent_node_is_a_cause_with_its_name_and_what_to_do() -> None:
    world = World(**GPU)
    world.start()
    (pod,) = world.cluster.pods
    node = pod["spec"]["nodeName"]
    for other in {"a", "b"} - {node}:  # the next pod finds no place
        world.cluster.drain(other)
    world.cluster.lose_node(node)
    for seconds in (60, 400):  # and again when its pod is to end
        world.cluster.advance(seconds)
        found = {cause.about: cause for cause in causes(world.seen())}
        silent = found[f"Node/{node}"]
        assert silent.message.startswith(f"node {node} has not reported since ")
        assert pod["metadata"]["name"] in silent.message
        assert f"kubectl describe node {node}" in silent.next_steps
    world.operator.close()


def quota(**hard: str) -> Callable[[World], None]:
    named = {name.replace("_", "."): value for name, value in hard.items()}
    return lambda world: world.create(RESOURCE_QUOTA, "team", hard=named)


def limits(world: World) -> None:
    world.create(LIMIT_RANGE, "limits", limits=[{"type": "Container", "max": {"cpu": "100m"}}])


def policy(world: World) -> None:
    def refuse(kind: Any, _item: Manifest) -> str | None:
        return "label owner is required" if kind == POD else None

    world.cluster.state.policies.append(refuse)


def nothing(_world: World) -> None:
    pass


# What goes wrong: the spec, who stands in the way, the first cause and what to do next.
LIVES: dict[str, tuple[dict[str, Any], Callable[[World], None], tuple[str, str, str]]] = {
    "not accepted": (
        {"engine": {"maxModelLen": 4096}},
        nothing,
        ("AtomDeployment/chat", "Accepted=False", ""),
    ),
    "too large": (
        {**GPU, "model": {"source": "hf://meta-llama/Llama-3.1-405B-Instruct"}},
        nothing,
        ("AtomDeployment/chat", "CapacityFits=False", ""),
    ),
    "quota of a Deployment": (
        {},
        quota(pods="0"),
        ("/chat", "exceeded quota: team", "describe quota team"),
    ),
    "quota of a Job": (HUB, quota(pods="0"), ("Job/", "exceeded quota: team", "spec.jobs.temp")),
    "quota of a group": (
        {"parallelism": {"tensor": 2, "nodes": 2}},
        quota(pods="1"),
        ("StatefulSet/chat-0", "exceeded quota: team", "describe quota team"),
    ),
    "limit range": ({}, limits, ("/chat", "maximum cpu usage", "LimitRange")),
    "policy": ({}, policy, ("/chat", "label owner is required", "spec.template.metadata")),
    "no device": (
        {**GPU, "parallelism": {"tensor": 8}, "replicas": 3},
        nothing,
        ("Pod/chat-", "Insufficient amd.com/gpu", "kubectl atom gpus"),
    ),
    "no such node": (
        {"template": {"spec": {"nodeSelector": {"disk": "none"}}}},
        nothing,
        ("Pod/chat-", "node affinity/selector", "show-labels"),
    ),
    "image": (
        {"engine": {"image": "registry.test/atom:typo"}},
        nothing,
        ("Pod/chat-", "ImagePullBackOff", "spec.engine.image"),
    ),
    "image of a Job": (
        {**HUB, "engine": {"image": "registry.test/atom:typo"}},
        nothing,
        ("Pod/atom-weights-", "ImagePullBackOff", "spec.engine.image"),
    ),
    "crash": (
        {"engine": {"image": "registry.test/atom:bad"}},
        nothing,
        ("Pod/chat-", "no such model", "kubectl atom logs chat -p"),
    ),
}


@pytest.fixture(params=LIVES)
def life(request: pytest.FixtureRequest) -> Iterator[tuple[World, tuple[str, str, str]]]:
    spec, prepare, expected = LIVES[request.param]
    world = World(**spec)
    if spec.get("cache"):
        world.create(VOLUME_CLAIM, "models", accessModes=["ReadWriteMany"])
    prepare(world)
    world.start()
    yield world, expected
    world.operator.close()


def test_the_first_cause_is_the_one_to_begin_with(
    life: tuple[World, tuple[str, str, str]],
) -> None:
    world, (about, words, step) = life
    seen = world.seen()
    found = causes(seen)
    first = found[0]
    assert about in first.about, found
    assert words in f"{first.reason}: {first.message}"
    assert step in " ".join(first.next_steps)
    messages = [cause.message for cause in found]
    assert len(messages) == len(set(messages))
    lines = list(why_lines(seen, found))
    assert lines[0].startswith("AtomDeployment default/chat is not ready")
    assert all(len(part) <= 60 for line in lines for part in wrapped(line, 60))
    document = why_document(seen, found)
    assert document["ready"] is False
    assert document["causes"][0]["message"] == first.message


def test_of_what_serves_nothing_stands_in_the_way() -> None:
    world = World()
    world.start()
    seen = world.seen()
    assert causes(seen) == []
    assert list(why_lines(seen, [])) == ["AtomDeployment default/chat is ready"]
    world.operator.close()


def test_what_is_mended_is_no_cause_any_more() -> None:
    world = World(engine={"image": "registry.test/atom:typo"})
    world.start()
    assert causes(world.seen())
    world.cluster.api.change_spec(ATOM_DEPLOYMENT, "chat", engine={"image": "registry.test/atom:1"})
    world.cluster.advance(300)
    assert causes(world.seen()) == []
    world.operator.close()


def scaled_away(world: World) -> None:
    world.cluster.api.change_spec(DEPLOYMENT, "chat", replicas=0)


# Nobody else tells of these: pods run, and what was asked for is not there all the same.
ROUTE: dict[str, Any] = {"gateway": {"httpRoute": {"parentRefs": [{"name": "nowhere"}]}}}
SCALED: dict[str, Any] = {"autoscaling": {"method": "HPA", "minReplicas": 1, "maxReplicas": 2}}


@pytest.mark.parametrize(
    ("spec", "happens", "words"),
    [
        (ROUTE, nothing, "Gateway default/nowhere does not exist"),
        (SCALED, scaled_away, "kubectl scale deployment/chat"),
    ],
    ids=["a gateway that is not there", "scaled to zero by hand"],
)
def test_of_what_serves_and_is_not_ready_the_cause_is_told(
    spec: dict[str, Any], happens: Callable[[World], None], words: str
) -> None:
    world = World(**spec)
    world.start()
    happens(world)
    world.cluster.advance(150)
    seen = world.seen()
    assert not why_document(seen, [])["ready"]
    assert words in " ".join(cause.message for cause in causes(seen))
    world.operator.close()


@pytest.mark.parametrize("name", SITUATIONS)
async def test_whatever_is_not_ready_has_a_cause_unless_it_is_on_its_way(name: str) -> None:
    parent = await situation(name)
    conditions = (parent.get("status") or {}).get("conditions") or ()
    progressing = [item["status"] for item in conditions if item["type"] == "Progressing"]
    seen = Seen(parent)
    is_well = why_document(seen, [])["ready"] or is_suspended(parent) or progressing == ["True"]
    assert is_well or causes(seen)


async def test_a_spec_that_nobody_has_seen_yet_is_a_cause() -> None:
    first = causes(Seen(await situation("changed since the last look")))[0]
    assert "no operator has looked at its latest spec" in first.message
    assert "app.kubernetes.io/name=atom-operator" in " ".join(first.next_steps)


@pytest.mark.parametrize(("phase", "told"), [("Pending", True), ("Bound", False)])
async def test_what_a_storage_class_says_of_a_claim_is_told_until_it_is_bound(
    phase: str, told: bool
) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    claim = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "models"},
        "status": {"phase": phase},
    }
    words = "storageclass.storage.k8s.io fast not found"
    said = {
        "type": "Warning",
        "reason": "ProvisioningFailed",
        "message": words,
        "involvedObject": {"kind": "PersistentVolumeClaim", "name": "models"},
        "lastTimestamp": now.isoformat(),
    }
    seen = Seen(await situation("serving"), [claim], [said], now=now)
    assert [(cause.about, cause.message) for cause in causes(seen)] == (
        [("PersistentVolumeClaim/models", words)] if told else []
    )


def test_before_an_operator_has_looked_that_is_the_cause() -> None:
    parent = atom_deployment()
    (cause,) = causes(Seen(parent))
    assert cause.reason == "NotSeen"
    assert "app.kubernetes.io/name=atom-operator" in " ".join(cause.next_steps)
