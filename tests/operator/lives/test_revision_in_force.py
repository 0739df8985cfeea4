"""What callers meet is what some pod serves, at every moment: while a change of the pods waits, is
refused, fails or rolls out, under any operator that takes over meanwhile.

Features and edits are drawn together: the seams between them are what breaks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CONFIG_MAP,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    SERVICE,
    Kind,
    Manifest,
    ObjectKey,
)
from atom_operator.kinds import (
    AUTOSCALER,
    HTTP_ROUTE,
    INFERENCE_POOL,
    NETWORK_POLICY,
    POD_MONITOR,
    PROMETHEUS_RULE,
    SCALED_OBJECT,
)
from atom_operator.reconcile.rollout_train import RolloutTrain
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.operator.builders_operator import atom_deployment, condition, gpu_node
from tests.support.operator.fake_cluster import FakeCluster, copied
from tests.support.operator_life.callers import engines_that_serve, misled, model_names

_BESIDE: tuple[Kind, ...] = (
    *(SERVICE, DEPLOYMENT, CONFIG_MAP, AUTOSCALER, SCALED_OBJECT, HTTP_ROUTE, INFERENCE_POOL),
    *(NETWORK_POLICY, POD_MONITOR, PROMETHEUS_RULE),
)
_FOR_PEOPLE = ("chat-plan", "chat-learned", "chat-model")  # nobody acts by these
_OTHER = ObjectKey("default", "other")
_WAITS = {"window": {"start": "03:40", "minutes": 60}}  # lives begin at 03:04
_LOADED_SECONDS, _TO_WINDOW_SECONDS, _ROLLED_SECONDS = 200.0, 2100.0, 900.0
_DEADLINE_SECONDS = 2400.0  # within which what cannot serve is rolled back
_BAD = "registry.test/atom:bad"
_ROUTE = {"parentRefs": [{"name": "gate"}], "matches": ["Header"]}
_LORA = {"lora": {"maxLoras": 2}}

FEATURES: dict[str, Mapping[str, Any]] = {
    "frontend": {"frontend": {}},
    "route": {"gateway": {"httpRoute": _ROUTE}},
    "picker": {"gateway": {"httpRoute": _ROUTE, "prefixAware": True}},
    "thresholds": {"autoscaling": {"method": "HPA", "minReplicas": 2, "maxReplicas": 3}},
    "adapters": {"engine": _LORA, "adapters": [{"name": "fin", "source": "hf://acme/fin"}]},
    "alerts": {"monitoring": {"podMonitor": {}, "alerts": {}, "dashboard": {}}},
    "policy": {"networkPolicy": {}},
    "handover": {"rollout": {"handover": True}},
}
EDITS: dict[str, Mapping[str, Any]] = {
    "name": {"model": {"servedName": "new-name"}},
    "length": {"engine": {"maxModelLen": 4096}},
    "sequences": {"engine": {"maxNumSeqs": 32}},
    "blocks": {"engine": {"blockSize": 32}},
    "image": {"engine": {"image": "registry.test/atom:2"}},
    "picker": {"gateway": {"httpRoute": _ROUTE, "prefixAware": True}},
    "no picker": {"gateway": {"prefixAware": False}},
    "key": {"engine": {"apiKeySecretRef": {"name": "keys", "key": "api"}}},
    "handover": {"rollout": {"handover": True, "drainSeconds": 60}},
    "variable": {"engine": {"env": [{"name": "MINE", "value": "1"}]}},
}


def merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings laid over one another, field by field."""
    found: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            before = found.get(name)
            both = isinstance(before, Mapping) and isinstance(value, Mapping)
            found[name] = merged(before or {}, value) if both else copied(value)
    return found


class World:
    """One AtomDeployment of GPUs, whose callers are asked after every moment."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        api = FakeCluster()
        api.unserved_kinds.add(SCALED_OBJECT)
        self.cluster = InMemoryCluster(api, [gpu_node("a"), gpu_node("b")])
        self.api, self.spec = self.cluster.api, dict(spec)
        self.operator = OperatorClient(self.cluster)
        self.complaints: list[str] = []
        self.cluster.settled.append(self._ask_callers)
        self.cluster.state.load["chat"] = 2.0
        self.api.create(ATOM_DEPLOYMENT, atom_deployment(**spec))
        self.cluster.advance(_LOADED_SECONDS)

    def _ask_callers(self) -> None:
        self.complaints += misled(self.cluster)

    def ask(self, spec: Mapping[str, Any]) -> None:
        fields = {*self.spec, *spec}
        self.spec = dict(spec)
        self.api.change_spec(ATOM_DEPLOYMENT, "chat", **{each: spec.get(each) for each in fields})
        self.cluster.settle()

    def hold_turns(self) -> None:
        """Another AtomDeployment rolls out, and only one may at a time."""
        train = RolloutTrain(1)
        assert train.take(_OTHER) is None
        object.__setattr__(self.operator.reconciler.memories, "train", train)

    def give_turns(self) -> None:
        self.operator.reconciler.memories.train.forget(_OTHER)

    @property
    def beside(self) -> dict[tuple[str, str], Manifest]:
        """What is made beside the pods, as it was asked for."""
        return {
            (kind.kind, name): copied({k: v for k, v in item.items() if k in ("spec", "data")})
            for (kind, _, name), item in self.api.objects.items()
            if kind in _BESIDE and (kind, name) != (DEPLOYMENT, "chat") and name not in _FOR_PEOPLE
        }

    @property
    def revisions(self) -> set[str]:
        """Of the pods that serve."""
        pods = engines_that_serve(self.cluster, "chat")
        return {pod["metadata"]["annotations"]["serving.atom.dev/revision"] for pod in pods}


Begin = Callable[[Mapping[str, Any]], World]


@pytest.fixture
def begin() -> Iterator[Begin]:
    worlds: list[World] = []

    def made(spec: Mapping[str, Any]) -> World:
        worlds.append(World(spec))
        return worlds[-1]

    yield made
    for world in worlds:
        world.operator.close()


def base(*parts: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    usual = {
        "model": {"source": "hf://Qwen/Qwen3-8B", "servedName": "old-name"},
        "accelerator": {"type": "amd", "product": "MI300X"},
        "parallelism": {"tensor": 4},
        "replicas": 2,
        "engine": {},
        "rollout": {},
    }
    return merged(usual, *parts, changes)


def drawn(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A spec with some features, and the same with some edits of what its pods are made from."""
    draw = random.Random(seed)
    features = draw.sample([*FEATURES], draw.randint(2, 5))
    edits = draw.sample([*EDITS], draw.randint(1, 3))
    if "frontend" in features:  # it chooses the pod of a request, as a picker does
        features = [name for name in features if name != "picker"]
        edits = [name for name in edits if name != "picker"]
    if "picker" not in features:
        edits = [name for name in edits if name != "no picker"]
    before = base(*(FEATURES[name] for name in features))
    after = merged(before, *(EDITS[name] for name in edits))
    return before, after if after != before else merged(before, EDITS["name"])


def _in_window(world: World, after: dict[str, Any]) -> Callable[[], None]:
    world.ask(merged(after, {"rollout": _WAITS}))
    return lambda: world.cluster.advance(_TO_WINDOW_SECONDS)


def _in_turn(world: World, after: dict[str, Any]) -> Callable[[], None]:
    world.hold_turns()
    world.ask(after)
    return world.give_turns


def _held_back(world: World, after: dict[str, Any]) -> Callable[[], None]:
    world.ask(merged(after, {"engine": {"extraArgs": ["--model=x"]}}))
    return lambda: world.ask(after)


def _rolled_back(world: World, after: dict[str, Any]) -> Callable[[], None]:
    revisions = world.revisions
    world.ask(merged(after, {"engine": {"image": _BAD}}))
    world.cluster.advance(_LOADED_SECONDS)
    assert world.revisions == revisions
    world.cluster.advance(_DEADLINE_SECONDS)
    assert condition(world.api, "Degraded")["reason"] == "RolledBack"
    return lambda: world.ask(after)


def _under_a_new_operator(world: World, after: dict[str, Any]) -> Callable[[], None]:
    world.operator.upgrade()
    world.cluster.advance(_LOADED_SECONDS)
    opens = _in_window(world, after)
    world.operator.upgrade()
    return opens


def _under_one_that_dies(world: World, after: dict[str, Any]) -> Callable[[], None]:
    opens: Callable[[], None] = _nothing
    for writes in (1, 2, 3, 4):
        world.operator.die_after(writes)
        note = {"objects": {"labels": {"try": str(writes)}}}
        opens = _in_window(world, merged(after, note))
        world.cluster.advance(_LOADED_SECONDS)
    world.ask(merged(after, {"rollout": _WAITS}))
    return opens


def _nothing() -> None:
    return None


SITUATIONS: dict[str, Callable[[World, dict[str, Any]], Callable[[], None]]] = {
    "window": _in_window,
    "turn": _in_turn,
    "held back": _held_back,
    "rollback": _rolled_back,
    "upgrade": _under_a_new_operator,
    "operators that die": _under_one_that_dies,
}


@pytest.mark.sampled(2)
@pytest.mark.singles
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("situation", SITUATIONS)
def test_callers_meet_what_serves_at_every_moment(begin: Begin, situation: str, seed: int) -> None:
    before, after = drawn(hash_of(situation) + seed)
    world = begin(before)
    old, revisions = world.beside, world.revisions
    assert revisions
    assert world.complaints == []
    go_on = SITUATIONS[situation](world, after)
    for _ in range(2):
        assert world.revisions == revisions, "pods that serve stay"
        assert world.beside == old, "and so does what stands beside them"
        world.cluster.advance(_LOADED_SECONDS)
    go_on()
    world.cluster.advance(_ROLLED_SECONDS)
    assert world.complaints == []
    assert not world.revisions & revisions, "what was asked for runs"
    spec = world.spec
    assert world.beside == begin(spec).beside, "as if it had always been so"


def hash_of(situation: str) -> int:
    return 100 * [*SITUATIONS].index(situation)


def test_what_no_pod_notices_counts_at_once_while_pods_wait(begin: Begin) -> None:
    features = merged(*(FEATURES[name] for name in ("frontend", "route", "alerts")))
    world = begin(base(features, rollout=_WAITS))
    revisions = world.revisions
    wanted = merged(
        world.spec,
        EDITS["name"],
        {"frontend": {"replicas": 3}, "monitoring": {"alerts": {"labels": {"team": "x"}}}},
    )
    wanted["gateway"]["httpRoute"]["hostnames"] = ["chat.example.com"]
    world.ask(wanted)
    world.cluster.advance(_LOADED_SECONDS)
    assert world.revisions == revisions
    assert world.complaints == []
    assert world.api.find(DEPLOYMENT, "chat-frontend")["spec"]["replicas"] == 3
    assert world.api.find(HTTP_ROUTE, "chat")["spec"]["hostnames"] == ["chat.example.com"]
    labels = world.api.find(PROMETHEUS_RULE, "chat")["metadata"]["labels"]
    assert labels["team"] == "x"


def test_a_route_has_both_names_while_pods_of_both_serve(begin: Begin) -> None:
    world = begin(base(FEATURES["route"]))
    seen: list[tuple[str, ...]] = []

    def note() -> None:
        names = tuple(model_names(world.api.find(HTTP_ROUTE, "chat")))
        if names not in seen:
            seen.append(names)

    world.cluster.settled.append(note)
    world.ask(merged(world.spec, EDITS["name"]))
    world.cluster.advance(_ROLLED_SECONDS)
    assert seen == [("old-name",), ("new-name", "old-name"), ("new-name",)]
    assert world.complaints == []
    records = world.api.names(CONTROLLER_REVISION)
    assert len(records) == 2, "of other pods none is kept once they have gone"


@pytest.mark.parametrize("asked", [3, 5])
@pytest.mark.parametrize("waits", ["window", "turn"])
def test_replicas_that_never_had_a_place_make_nobody_else_wait_less(
    begin: Begin, waits: str, asked: int
) -> None:
    """Four replicas have a place; more may be asked for."""
    world = begin(base(FEATURES["frontend"], replicas=asked))
    pods = {pod["metadata"]["name"] for pod in engines_that_serve(world.cluster, "chat")}
    assert len(pods) == min(asked, 4)
    SITUATIONS[waits](world, merged(world.spec, EDITS["length"]))
    world.cluster.advance(_LOADED_SECONDS)
    assert {pod["metadata"]["name"] for pod in engines_that_serve(world.cluster, "chat")} == pods
    assert condition(world.api, "Progressing")["reason"] == "RolloutWaits"
