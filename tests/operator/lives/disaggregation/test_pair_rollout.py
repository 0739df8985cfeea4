"""The pods of both roles change as a pair: prefill pods first, and one role serves always."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    ATOM_PROFILE,
    DEPLOYMENT,
    SERVICE,
    Manifest,
    ObjectKey,
)
from atom_operator.kinds import SECRET
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.operator.builders_operator import atom_deployment, gpu_node
from tests.support.operator.fake_cluster import FakeCluster, copied
from tests.support.operator_life.callers import engines_that_serve, option

_LOADED_SECONDS, _ROLLED_SECONDS, _FAILED_SECONDS = 300.0, 900.0, 3000.0
_NEW, _BAD = "registry.test/atom:2", "registry.test/atom:bad"
_GPU = {
    "model": {"source": "hf://Qwen/Qwen3-8B"},
    "accelerator": {"type": "amd", "product": "MI300X"},
}
_CPU = {"accelerator": {"type": "cpu", "memory": "16Gi"}}


class Pairs:
    """An AtomDeployment whose roles are watched at every moment."""

    def __init__(self, nodes: int = 2, devices: int = 8, **spec: Any) -> None:
        self.api = FakeCluster()
        self.cluster = InMemoryCluster(
            self.api, [gpu_node("abcd"[n], devices) for n in range(nodes)]
        )
        self.operator = OperatorClient(self.cluster)
        self.cluster.settled.append(self._watch)
        self.spec: dict[str, Any] = {**atom_deployment("chat")["spec"], **_CPU, **spec}
        self.silent: list[str] = []  # moments in which no pod of either role serves
        self.early: list[str] = []  # decode pods that are newer than the prefill pods
        self.most_away = 0
        self.watches = False
        self.ask()

    def ask(self, **changes: Any) -> None:
        merged = {**self.spec, **changes}
        self.spec = {name: value for name, value in merged.items() if value is not None}
        manifest = atom_deployment("chat")
        manifest["spec"] = copied(self.spec)
        self.api.create(ATOM_DEPLOYMENT, manifest)

    def live(self, seconds: float) -> None:
        self.cluster.advance(seconds)

    def object(self, kind: Any, name: str) -> Manifest | None:
        return self.api.objects.get((kind, "default", name))

    def status(self, name: str = "chat") -> dict[str, Any]:
        found = self.object(ATOM_DEPLOYMENT, name)
        assert found is not None
        return dict(found["status"])

    def told(self, kind: str, name: str = "chat") -> dict[str, Any]:
        found = self.status(name)["conditions"]
        return next((item for item in found if item["type"] == kind), {"status": "absent"})

    def images(self, name: str) -> set[str]:
        return {
            item["image"]
            for pod in engines_that_serve(self.cluster, name)
            for item in pod["spec"]["containers"]
            if item["name"] == "engine"
        }

    def _watch(self) -> None:
        if not self.watches:
            return
        decode = engines_that_serve(self.cluster, "chat")
        prefill = engines_that_serve(self.cluster, "chat-prefill")
        if not decode and not prefill:
            self.silent.append(f"at {self.cluster.state.time}")
        asked = [self.object(DEPLOYMENT, name) for name in ("chat", "chat-prefill")]
        wanted = sum(item["spec"]["replicas"] for item in asked if item is not None)
        self.most_away = max(self.most_away, wanted - len(decode) - len(prefill))
        if _NEW in self.images("chat") and self.images("chat-prefill") - {_NEW}:
            self.early.append(f"at {self.cluster.state.time}")


@pytest.fixture
def world() -> Iterator[Callable[..., Pairs]]:
    made: list[Pairs] = []

    def make(**spec: Any) -> Pairs:
        made.append(Pairs(**spec))
        return made[-1]

    yield make
    for each in made:
        each.operator.close()


@contextmanager
def watched(pairs: Pairs) -> Iterator[None]:
    pairs.watches = True
    yield
    pairs.watches = False


def test_both_roles_start_with_their_parts_of_the_exchange(world: Callable[..., Pairs]) -> None:
    pairs = world(replicas=2, disaggregation={"prefill": {"replicas": 1}})
    pairs.live(_LOADED_SECONDS)
    decode, prefill = (pairs.object(DEPLOYMENT, name) for name in ("chat", "chat-prefill"))
    assert decode is not None
    assert prefill is not None
    of = {"chat": decode, "chat-prefill": prefill}
    flags = {
        name: str(option(item["spec"]["template"]["spec"], "--kv-transfer-config"))
        for name, item in of.items()
    }
    assert "kv_consumer" in flags["chat"]
    assert "kv_producer" in flags["chat-prefill"]
    front = pairs.object(DEPLOYMENT, "chat-frontend")
    assert front is not None
    args = front["spec"]["template"]["spec"]["containers"][0]["args"]
    first = args.index("--worker-urls") + 1
    assert args[first : first + 2] == [
        "http://chat-workers.default.svc:8000",
        "http://chat-prefill-workers.default.svc:8000",
    ]
    assert pairs.object(SERVICE, "chat-prefill-workers") is not None
    secrets = {key[2] for key in pairs.api.objects if key[0] == SECRET}
    assert secrets == {"chat-peers"}
    assert pairs.status()["disaggregation"]["prefill"]["readyReplicas"] == 1
    for kind in ("PrefillReady", "DecodeReady", "PairCompatible", "Ready"):
        assert pairs.told(kind)["status"] == "True", kind


@pytest.mark.parametrize("devices", [8, 3], ids=["spare devices", "full nodes"])
def test_a_rollout_replaces_prefill_pods_first_and_one_pod_at_a_time(
    world: Callable[..., Pairs], devices: int
) -> None:
    pairs = world(
        **_GPU, nodes=1, devices=devices, replicas=2, disaggregation={"prefill": {"replicas": 1}}
    )
    pairs.live(_LOADED_SECONDS)
    with watched(pairs):
        pairs.ask(engine={"image": _NEW})
        pairs.live(_ROLLED_SECONDS)
    assert (pairs.images("chat"), pairs.images("chat-prefill")) == ({_NEW}, {_NEW})
    assert (pairs.silent, pairs.early) == ([], [])
    assert pairs.most_away <= 1
    assert pairs.told("Ready")["status"] == "True"


def test_a_prefill_revision_that_fails_keeps_the_decode_pods(world: Callable[..., Pairs]) -> None:
    pairs = world(disaggregation={"prefill": {}})
    pairs.live(_LOADED_SECONDS)
    good = pairs.images("chat")
    with watched(pairs):
        pairs.ask(engine={"image": _BAD}, rollout={"progressDeadlineSeconds": 600})
        pairs.live(_FAILED_SECONDS)
    assert pairs.images("chat") == good
    assert pairs.images("chat-prefill") == good, "the prefill pods went back by themselves"
    assert pairs.silent == []
    told = pairs.told("Progressing")
    assert (told["status"], told["reason"]) == ("False", "PrefillFailed")
    assert pairs.told("Stalled")["status"] == "True"
    pairs.ask(engine={"image": _NEW})
    pairs.live(_ROLLED_SECONDS)
    assert (pairs.images("chat"), pairs.images("chat-prefill")) == ({_NEW}, {_NEW})


@pytest.mark.parametrize("moment", ["while prefill pods start", "after they failed"])
def test_a_deleted_workload_comes_back_as_it_was_beside_old_prefill_pods(
    world: Callable[..., Pairs], moment: str
) -> None:
    pairs = world(replicas=2, disaggregation={"prefill": {}})
    pairs.live(_LOADED_SECONDS)
    good = pairs.images("chat")
    pairs.ask(engine={"image": _BAD}, rollout={"progressDeadlineSeconds": 600})
    pairs.live(20 if moment == "while prefill pods start" else _FAILED_SECONDS)
    del pairs.api.objects[DEPLOYMENT, "default", "chat"]
    pairs.live(_LOADED_SECONDS)
    assert pairs.images("chat") == good
    workload = pairs.object(DEPLOYMENT, "chat")
    assert workload is not None
    assert workload["spec"]["template"]["spec"]["containers"][0]["image"] in good


def test_what_was_rolled_back_is_not_ready_while_its_successor_waits(
    world: Callable[..., Pairs],
) -> None:
    pairs = world()
    pairs.live(_LOADED_SECONDS)
    pairs.ask(engine={"image": _BAD}, rollout={"progressDeadlineSeconds": 600})
    pairs.live(_FAILED_SECONDS)
    pairs.ask(engine={"image": _NEW}, rollout={"window": {"start": "02:00", "minutes": 1}})
    pairs.live(_LOADED_SECONDS)
    assert pairs.told("Progressing")["reason"] == "RolloutWaits"
    for kind, status in (("Ready", "False"), ("Degraded", "True")):
        assert (pairs.told(kind)["status"], pairs.told(kind)["reason"]) == (status, "RolledBack")


def test_prefill_pods_follow_a_rollback_of_the_decode_pods(world: Callable[..., Pairs]) -> None:
    pairs = world(disaggregation={"prefill": {}})
    pairs.live(_LOADED_SECONDS)
    good = pairs.images("chat")
    spoilt = {"spec": {"containers": [{"name": "engine", "image": _BAD}]}}
    roles = {"prefill": {"template": {"metadata": {}}}, "decode": {"template": spoilt}}
    with watched(pairs):
        pairs.ask(
            engine={"image": _NEW},
            disaggregation=roles,
            rollout={"progressDeadlineSeconds": 600},
        )
        pairs.live(_FAILED_SECONDS)
    assert pairs.images("chat") == good
    assert pairs.images("chat-prefill") == good
    assert pairs.silent == []
    assert pairs.told("Degraded")["reason"] == "RolledBack"


def test_pods_that_serve_are_divided_and_joined_again(world: Callable[..., Pairs]) -> None:
    pairs = world(replicas=2)
    pairs.live(_LOADED_SECONDS)
    with watched(pairs):
        pairs.ask(disaggregation={"prefill": {"replicas": 2}})
        pairs.live(_ROLLED_SECONDS)
        assert pairs.told("Ready")["status"] == "True"
        assert len(engines_that_serve(pairs.cluster, "chat-prefill")) == 2
        pairs.ask(disaggregation=None)
        pairs.live(_ROLLED_SECONDS)
    assert pairs.object(ATOM_DEPLOYMENT, "chat-prefill") is None
    assert engines_that_serve(pairs.cluster, "chat-prefill") == []
    assert pairs.silent == []
    types = {item["type"] for item in pairs.status()["conditions"]}
    assert not types & {"PrefillReady", "DecodeReady", "PairCompatible"}
    assert "disaggregation" not in pairs.status()


@pytest.mark.parametrize("rollout", [None, {"window": {"start": "03:40", "minutes": 1}}])
def test_decode_pods_become_whole_ones_where_prefill_pods_were(
    world: Callable[..., Pairs], rollout: dict[str, Any] | None
) -> None:
    """On full nodes none of them stops before a whole pod serves in the room of a prefill pod."""
    pairs = world(**_GPU, nodes=1, devices=2, disaggregation={"prefill": {}}, rollout=rollout or {})
    pairs.live(_LOADED_SECONDS)
    with watched(pairs):
        pairs.ask(disaggregation=None)
        pairs.live(600)
        is_closed = rollout is not None
        assert bool(engines_that_serve(pairs.cluster, "chat-prefill")) == is_closed
        pairs.live(3600)
    assert pairs.object(ATOM_DEPLOYMENT, "chat-prefill") is None
    assert pairs.silent == []
    assert pairs.told("Ready")["status"] == "True"
    (pod,) = engines_that_serve(pairs.cluster, "chat")
    assert option(pod["spec"], "--kv-transfer-config") is None


def test_without_room_for_prefill_pods_the_pods_stay_whole(world: Callable[..., Pairs]) -> None:
    pairs = world(**_GPU, nodes=1, devices=2, replicas=2)
    pairs.live(_LOADED_SECONDS)
    with watched(pairs):
        pairs.ask(disaggregation={"prefill": {}})
        pairs.live(_ROLLED_SECONDS)
    assert len(engines_that_serve(pairs.cluster, "chat")) == 2
    assert pairs.most_away <= 1, "the prefill pod that finds no node"
    for pod in engines_that_serve(pairs.cluster, "chat"):
        assert option(pod["spec"], "--kv-transfer-config") is None
    assert pairs.told("PrefillReady")["status"] == "False"


def test_a_window_is_of_both_roles_and_is_not_asked_twice(world: Callable[..., Pairs]) -> None:
    window = {"window": {"start": "03:40", "minutes": 1}}  # lives begin at 03:04
    pairs = world(replicas=3, rollout=window, disaggregation={"prefill": {"replicas": 3}})
    pairs.live(_LOADED_SECONDS)
    old = pairs.images("chat")
    pairs.ask(engine={"image": _NEW})
    pairs.live(600)
    assert (pairs.images("chat"), pairs.images("chat-prefill")) == (old, old)
    assert pairs.told("Ready")["reason"] == "RolloutWaits"
    pairs.live(3600)
    assert (pairs.images("chat"), pairs.images("chat-prefill")) == ({_NEW}, {_NEW})


@pytest.mark.parametrize(
    "change",
    [{"engine": {"image": _NEW}}, {"engine": {"extraArgs": ["--model=x"]}}],
    ids=["waits for its window", "is refused"],
)
def test_deleted_prefill_pods_come_back_as_they_were_while_a_change(
    world: Callable[..., Pairs], change: dict[str, Any]
) -> None:
    window = {"window": {"start": "13:40", "minutes": 1}}
    pairs = world(rollout=window, disaggregation={"prefill": {}})
    pairs.live(_LOADED_SECONDS)
    before = pairs.status("chat-prefill")["revision"]
    pairs.ask(**change)
    pairs.live(20)
    del pairs.api.objects[ATOM_DEPLOYMENT, "default", "chat-prefill"]
    pairs.live(_LOADED_SECONDS)
    assert pairs.status("chat-prefill")["revision"] == before
    assert len(engines_that_serve(pairs.cluster, "chat-prefill")) == 1


def test_a_change_of_the_prefill_pods_alone_waits_for_the_window(
    world: Callable[..., Pairs],
) -> None:
    window = {"window": {"start": "03:40", "minutes": 6}}
    pairs = world(rollout=window, disaggregation={"prefill": {}})
    pairs.live(_LOADED_SECONDS)
    before = pairs.status("chat-prefill")["revision"], pairs.status()["revision"]
    role = {"engine": {"maxNumBatchedTokens": 4096}, "replicas": 2}
    pairs.ask(disaggregation={"prefill": role})
    pairs.live(600)
    assert pairs.status("chat-prefill")["revision"] == before[0]
    assert pairs.status("chat-prefill")["readyReplicas"] == 2, "numbers apply at once"
    pairs.live(3600)
    assert pairs.status("chat-prefill")["revision"] != before[0]
    assert pairs.status()["revision"] == before[1], "no decode pod is replaced"


def test_a_paused_role_stops_both_until_it_continues(world: Callable[..., Pairs]) -> None:
    pairs = world(disaggregation={"prefill": {}})
    pairs.live(_LOADED_SECONDS)
    old = pairs.images("chat")

    def pause(is_paused: bool) -> None:
        stored = pairs.object(DEPLOYMENT, "chat-prefill")
        assert stored is not None
        stored["spec"]["paused"] = is_paused
        stored["metadata"]["generation"] += 1
        pairs.api.touch(stored)

    pause(True)
    pairs.ask(engine={"image": _NEW})
    pairs.live(_ROLLED_SECONDS)
    assert (pairs.images("chat"), pairs.images("chat-prefill")) == (old, old)
    assert pairs.told("Progressing")["reason"] == "PrefillFailed"
    assert "kubectl rollout resume" in pairs.told("Progressing")["message"]
    pause(False)
    pairs.live(_ROLLED_SECONDS)
    assert (pairs.images("chat"), pairs.images("chat-prefill")) == ({_NEW}, {_NEW})


def test_a_changed_profile_reaches_both_roles_in_one_rollout(world: Callable[..., Pairs]) -> None:
    window = {"window": {"start": "03:40", "minutes": 1}}
    pairs = world(rollout=window, disaggregation={"prefill": {}})

    def set_site(site: str) -> None:
        pairs.api.objects.pop((ATOM_PROFILE, "", "default"), None)
        spec = {"engine": {"env": [{"name": "SITE", "value": site}]}}
        metadata = {"name": "default", "namespace": ""}
        pairs.cluster.state.create(ATOM_PROFILE, {"metadata": metadata, "spec": spec})

    def sites(name: str) -> set[str]:
        return {
            item["value"]
            for pod in engines_that_serve(pairs.cluster, name)
            for item in pod["spec"]["containers"][0]["env"]
            if item["name"] == "SITE"
        }

    set_site("1")
    pairs.live(_LOADED_SECONDS)
    pairs.live(3600)
    assert (sites("chat"), sites("chat-prefill")) == ({"1"}, {"1"})
    set_site("2")
    pairs.live(3600)
    assert (sites("chat"), sites("chat-prefill")) == ({"1"}, {"1"}), "the window is closed"
    pairs.live(24 * 3600)
    assert (sites("chat"), sites("chat-prefill")) == ({"2"}, {"2"})


def test_the_train_takes_a_pair_for_one(world: Callable[..., Pairs]) -> None:
    pairs = world(replicas=2, disaggregation={"prefill": {"replicas": 2}})
    pairs.operator.max_rollouts = 1
    pairs.operator.restart()
    other = atom_deployment("other", replicas=2)
    other["spec"] |= _CPU
    pairs.api.create(ATOM_DEPLOYMENT, copied(other))
    pairs.live(_LOADED_SECONDS)
    overlaps: list[str] = []

    def rolls(name: str) -> bool:
        found = pairs.object(DEPLOYMENT, name)
        status = (found or {}).get("status") or {}
        return bool(found) and status.get("replicas") != status.get("updatedReplicas")

    def watch() -> None:
        if rolls("other") and (rolls("chat") or rolls("chat-prefill")):
            overlaps.append(f"at {pairs.cluster.state.time}")

    pairs.cluster.settled.append(watch)
    pairs.ask(engine={"image": _NEW})
    other["spec"]["engine"] = {"image": _NEW}
    pairs.api.create(ATOM_DEPLOYMENT, copied(other))
    pairs.live(2 * _ROLLED_SECONDS)
    assert overlaps == []
    for name in ("chat", "chat-prefill", "other"):
        assert pairs.images(name) == {_NEW}, name


def test_a_suspended_pair_has_no_pods_and_comes_back(world: Callable[..., Pairs]) -> None:
    pairs = world(disaggregation={"prefill": {}})
    pairs.live(_LOADED_SECONDS)
    pairs.ask(suspend=True)
    pairs.live(_ROLLED_SECONDS)
    assert engines_that_serve(pairs.cluster, "chat") == []
    assert engines_that_serve(pairs.cluster, "chat-prefill") == []
    pairs.ask(suspend=None)
    pairs.live(_ROLLED_SECONDS)
    assert pairs.told("Ready")["status"] == "True"
    assert pairs.told("PrefillReady")["status"] == "True"


def test_deletion_takes_both_roles(world: Callable[..., Pairs]) -> None:
    pairs = world(disaggregation={"prefill": {}})
    pairs.live(_LOADED_SECONDS)
    pairs.api.objects.pop((ATOM_DEPLOYMENT, "default", "chat"))
    pairs.live(_ROLLED_SECONDS)
    assert pairs.cluster.pods == []
    assert [key for key in pairs.api.objects if key[0] == ATOM_DEPLOYMENT] == []


def test_an_operator_that_restarts_midway_continues(world: Callable[..., Pairs]) -> None:
    pairs = world(replicas=2, disaggregation={"prefill": {"replicas": 2}})
    pairs.live(_LOADED_SECONDS)
    with watched(pairs):
        pairs.ask(engine={"image": _NEW})
        for _ in range(30):
            pairs.live(30)
            pairs.operator.restart()
    assert (pairs.images("chat"), pairs.images("chat-prefill")) == ({_NEW}, {_NEW})
    assert (pairs.silent, pairs.early) == ([], [])


def test_a_name_of_the_operator_is_refused_to_others(world: Callable[..., Pairs]) -> None:
    pairs = world()
    manifest = atom_deployment("mine")
    manifest["spec"] |= {**_CPU, "disaggregation": {"prefillFor": "chat"}}
    pairs.api.create(ATOM_DEPLOYMENT, manifest)
    pairs.live(60)
    told = pairs.told("Accepted", "mine")
    assert told["status"] == "False"
    assert "spec.disaggregation.prefillFor" in told["message"]
    assert ObjectKey("default", "mine") in pairs.operator.keys
