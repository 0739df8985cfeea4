"""What the API server answers with an error for a minute is told in its words, and stops no write
that does not need it; what it lets through again is done, and told no more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from atom_operator.cluster.errors import ClusterError, classify
from atom_operator.cluster.fleet import FleetReader
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CONFIG_MAP,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    EVENT,
    SERVICE,
    SERVICE_ACCOUNT,
    ObjectKey,
)
from atom_operator.kinds import (
    AUTOSCALER,
    HTTP_ROUTE,
    NETWORK_POLICY,
    POD_MONITOR,
    RESOURCE_CLAIM_TEMPLATE,
    Kind,
)
from atom_operator.reconcile.decider import Decider
from atom_operator.reconcile.memories import Memories
from atom_operator.reconcile.reconciler import Reconciler
from atom_operator.reconcile.rollout_train import RolloutTrain
from atom_operator.settings import OperatorSettings
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import IMAGES, KEY, NOW, atom_deployment, gpu_node
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.fake_engines import FakeEngines

EVERYTHING: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-8B"},
    "accelerator": {"type": "amd", "product": "MI300X", "claim": {}},
    "replicas": 2,
    "autoscaling": {"minReplicas": 1, "maxReplicas": 3, "method": "HPA"},
    "gateway": {"httpRoute": {"parentRefs": [{"name": "gate"}]}},
    "monitoring": {"podMonitor": {}, "alerts": {}, "dashboard": {}},
    "networkPolicy": {},
}
ANSWERS = {
    "500 of a webhook without endpoints": (500, 'failed calling webhook "policy": no endpoints'),
    "413": (413, "Request entity too large: limit is 3145728"),
    "403": (403, "services is forbidden"),
    "409": (409, "the object has been modified"),
    "422": (422, "spec.ports: Invalid value"),
    "503": (503, "etcdserver: leader changed"),
    "no answer": (None, "timed out after 30 s"),
}
# The pods wait for these; all others are written whatever becomes of them.
_NEEDED = (
    SERVICE_ACCOUNT,
    CONFIG_MAP,
    CONTROLLER_REVISION,
    NETWORK_POLICY,
    RESOURCE_CLAIM_TEMPLATE,
)


@dataclass
class Refusing:
    """The cluster, of which writes of one kind fail; None: the status."""

    inner: FakeCluster
    kind: Kind | None
    error: Callable[[], ClusterError]
    fails: bool = True
    tried: int = field(default=0)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if name.startswith(("get", "list", "dry_run")):
            return method
        return self._write(name, method)

    def _write(
        self, name: str, method: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def write(*arguments: Any) -> Any:
            of_status = name == "apply_status" and self.kind is None
            if self.fails and (of_status or arguments[0] == self.kind):
                self.tried += 1
                raise self.error()
            return await method(*arguments)

        return write


class Operator:
    """One process with a clock that tries again as the queue does."""

    def __init__(self, port: Any) -> None:
        self.now, self.errors = NOW, 0
        settings = OperatorSettings(engine_images=IMAGES)
        decider = Decider(port, FleetReader(port, self.now.timestamp), FakeEngines(), settings)
        self.train = RolloutTrain(1)
        clock: Any = lambda: self.now  # noqa: E731
        self.reconciler = Reconciler(
            port, FakeEngines(), decider, clock=clock, memories=Memories(train=self.train)
        )

    async def work(self, seconds: float, key: ObjectKey = KEY) -> None:
        end, pause = self.now + timedelta(seconds=seconds), 0.5
        while self.now <= end:
            try:
                await self.reconciler.reconcile(key)
                pause = 30.0
            except ClusterError:
                self.errors += 1
                pause = min(2 * pause, 60.0)
            self.now += timedelta(seconds=pause)


def begun(spec: dict[str, Any]) -> FakeCluster:
    cluster = FakeCluster(nodes=[gpu_node("a")])
    cluster.create(ATOM_DEPLOYMENT, atom_deployment(**spec))
    return cluster


def conditions(cluster: FakeCluster) -> dict[str, dict[str, Any]]:
    status = cluster.find(ATOM_DEPLOYMENT, "chat").get("status") or {}
    return {each["type"]: each for each in status.get("conditions") or ()}


async def children_of(spec: dict[str, Any]) -> set[tuple[Kind, str]]:
    """All that is written where nothing fails."""
    cluster = begun(spec)
    await Operator(cluster).work(1)
    kinds = (ATOM_DEPLOYMENT, EVENT)
    return {(kind, name) for kind, _, name in cluster.objects if kind not in kinds}


def kinds_of(spec: dict[str, Any]) -> list[Kind]:
    import asyncio

    return sorted({kind for kind, _ in asyncio.run(children_of(spec))})


@pytest.mark.singles
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("kind", kinds_of(EVERYTHING), ids=lambda kind: kind.kind)
async def test_what_fails_is_told_and_stops_nothing_that_does_not_need_it(
    kind: Kind, answer: str
) -> None:
    code, words = ANSWERS[answer]
    cluster = begun(EVERYTHING)
    port = Refusing(cluster, kind, lambda: classify(code, f"apply {kind.kind} chat: {words}"))
    operator = Operator(port)
    with suppress(ClusterError):
        await operator.reconciler.reconcile(KEY)
    parent = cluster.find(ATOM_DEPLOYMENT, "chat")
    assert parent["status"]["observedGeneration"] == parent["metadata"]["generation"]
    assert conditions(cluster)["Ready"]["status"] == "False"
    await operator.work(90)
    said = [each["message"] for each in conditions(cluster).values()]
    assert any(words in message for message in said), said
    events = [item for key, item in cluster.objects.items() if key[0] == EVENT]
    assert any(words in item["message"] for item in events)
    written = {(found, name) for found, _, name in cluster.objects}
    lacking = {found for found, _ in await children_of(EVERYTHING) - written} - {kind}
    assert lacking <= ({DEPLOYMENT, AUTOSCALER} if kind in _NEEDED else {AUTOSCALER})
    port.fails = False
    await operator.work(200)
    finish_rollout(cluster)
    await operator.work(60)
    assert await children_of(EVERYTHING) <= {(found, name) for found, _, name in cluster.objects}
    assert not any(words in each["message"] for each in conditions(cluster).values())


@pytest.mark.parametrize("answer", ANSWERS)
async def test_a_change_of_what_serves_is_not_told_as_done_while_writes_fail(answer: str) -> None:
    code, words = ANSWERS[answer]
    cluster = begun({})
    port = Refusing(cluster, SERVICE, lambda: classify(code, words), fails=False)
    operator = Operator(port)
    for _ in range(3):
        await operator.work(1)
        finish_rollout(cluster)
    await operator.work(1)
    assert conditions(cluster)["Ready"]["status"] == "True"
    port.fails = True
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", objects={"labels": {"team": "x"}})
    await operator.work(90)
    ready = conditions(cluster)["Ready"]
    assert ready["status"] == "False"
    assert ready["observedGeneration"] == 2
    assert words in ready["message"]
    assert operator.train.take(ObjectKey("default", "other")) is None  # nobody waits for it


async def test_a_moment_of_an_error_is_nobodys_news() -> None:
    cluster = begun(EVERYTHING)
    port = Refusing(cluster, SERVICE, lambda: classify(500, "busy"), fails=False)
    operator = Operator(port)
    for _ in range(3):
        await operator.work(1)
        finish_rollout(cluster)
    await operator.work(1)
    before = conditions(cluster)
    cluster.objects.pop((SERVICE, "default", "chat"))
    port.fails = True
    await operator.work(20)
    assert port.tried > 2
    assert conditions(cluster) == before
    port.fails = False
    await operator.work(20)
    assert conditions(cluster)["Ready"]["status"] == before["Ready"]["status"]


@pytest.mark.parametrize(
    ("verb", "answer"),
    [
        ("list_labelled", "500 of a webhook without endpoints"),
        ("list_labelled", "403"),
        ("list_labelled", "no answer"),
        ("dry_run", "500 of a webhook without endpoints"),
        ("dry_run", "no answer"),
    ],
)
async def test_a_pass_that_is_cut_off_is_told_too(
    verb: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read, or asked for by a dry run, is answered with an error."""
    code, words = ANSWERS[answer]
    template = {"metadata": {"labels": {"team": "x"}}}
    cluster = begun({**EVERYTHING, "template": template})

    async def fails(*_: Any) -> Any:
        raise classify(code, words)

    operator = Operator(cluster)
    monkeypatch.setattr(cluster, verb, fails)
    await operator.work(90)
    ready = conditions(cluster)["Ready"]
    assert ready["status"] == "False"
    assert words in ready["message"]
    events = [item for key, item in cluster.objects.items() if key[0] == EVENT]
    assert any(words in item["message"] for item in events)


@pytest.mark.parametrize("answer", ANSWERS)
async def test_a_status_that_cannot_be_written_is_told_by_an_event(answer: str) -> None:
    code, words = ANSWERS[answer]
    cluster = begun(EVERYTHING)
    await Operator(Refusing(cluster, None, lambda: classify(code, words))).work(90)
    events = [item for key, item in cluster.objects.items() if key[0] == EVENT]
    assert any(words in item["message"] for item in events)
    assert (HTTP_ROUTE, "default", "chat") in cluster.objects
    assert (POD_MONITOR, "default", "chat") in cluster.objects
