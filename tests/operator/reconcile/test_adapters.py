"""LoRA adapters of a spec: pods follow a list, are not replaced for it, and say how each does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CONFIG_MAP,
    DEPLOYMENT,
    POD,
    AdapterState,
    FieldProblem,
    Owner,
)
from atom_operator.plan_report import facts
from atom_operator.plugin.status_view import status_lines
from atom_operator.reconcile.planning import Surroundings, plan_spec
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    IMAGES,
    KEY,
    cluster_with,
    condition,
    parsed,
    plan,
    pod,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.fake_engines import FakeEngines

IP = "10.0.0.7"
ROOM: dict[str, Any] = {"lora": {"claims": ["adapters"]}}
SQL = {"name": "sql", "source": "pvc://adapters/sql"}
LEGAL = {"name": "legal", "source": "hf://org/legal"}
SQL_PATH = "/models/adapters/sql"


def adapted(*adapters: dict[str, str], **changes: Any) -> dict[str, Any]:
    return {"engine": ROOM, "adapters": list(adapters), **changes}


async def serving(engines: FakeEngines, *adapters: dict[str, str]) -> FakeCluster:
    cluster, planned = cluster_with(**adapted(*adapters)), plan(**adapted(*adapters))
    assert planned.capacity.capacity is not None
    engines.capacities[IP] = planned.capacity.capacity
    await reconciler(cluster, engines=engines).reconcile(KEY)
    finish_rollout(cluster)
    cluster.put_pod(pod(cluster, podIP=IP))
    finish_rollout(cluster)
    await reconciler(cluster, engines=engines).reconcile(KEY)
    return cluster


def listed(cluster: FakeCluster) -> dict[str, str]:
    data = cluster.find(CONFIG_MAP, "chat-adapters")["data"]
    return {each["name"]: each["path"] for each in json.loads(data["adapters.json"])}


def only_pod(cluster: FakeCluster) -> dict[str, Any]:
    (name,) = cluster.names(POD)
    return cluster.find(POD, name)


def told(engines: FakeEngines, **states: str) -> None:
    """Let the pod tell of adapters: their states by name, behind a colon the words."""
    paths = {"sql": SQL_PATH, "legal": "org/legal"}
    engines.adapted[IP] = tuple(
        AdapterState(name, paths[name], *text.split(": ", 1)) for name, text in states.items()
    )


async def ask(cluster: FakeCluster, engines: FakeEngines) -> float | None:
    outcome = await reconciler(cluster, engines=engines).reconcile(KEY)
    return outcome.requeue_after_seconds


async def test_a_changed_list_reaches_pods_and_replaces_none() -> None:
    engines = FakeEngines()
    told(engines, sql="loaded")
    cluster = await serving(engines, SQL)
    before = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]
    assert listed(cluster) == {"sql": SQL_PATH}
    assert condition(cluster, "AdaptersReady")["reason"] == "AdaptersLoaded"
    assert condition(cluster, "Ready")["status"] == "True"

    cluster.change_spec(ATOM_DEPLOYMENT, "chat", adapters=[SQL, LEGAL])
    assert await ask(cluster, engines) == 10.0
    assert listed(cluster) == {"sql": SQL_PATH, "legal": "org/legal"}
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["template"] == before
    loading = condition(cluster, "AdaptersReady")
    assert (loading["status"], loading["reason"]) == ("False", "AdaptersLoading")
    assert "1 of 1 pods load legal; requests that meet them get HTTP 404" in loading["message"]
    poked = only_pod(cluster)["metadata"]["annotations"]["serving.atom.dev/adapters"]
    assert poked, "its kubelet renews the list at once"

    told(engines, sql="loaded", legal="loaded")
    assert await ask(cluster, engines) is None
    assert condition(cluster, "AdaptersReady")["status"] == "True"
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", adapters=[])
    told(engines)
    await ask(cluster, engines)
    assert listed(cluster) == {}
    assert condition(cluster, "AdaptersReady")["reason"] == "Absent"
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["template"] == before
    assert "adapters" not in cluster.find(ATOM_DEPLOYMENT, "chat")["status"]


async def test_pods_carry_labels_of_the_adapters_that_they_serve() -> None:
    engines = FakeEngines()
    told(engines, sql="loaded", legal="loading")
    cluster = await serving(engines, SQL, LEGAL)
    labels = only_pod(cluster)["metadata"]["labels"]
    assert labels["adapter.serving.atom.dev/sql"] == "served"
    assert "adapter.serving.atom.dev/legal" not in labels
    writes = list(cluster.writes)
    await ask(cluster, engines)
    assert cluster.writes == writes


async def test_a_refusal_is_told_in_the_engine_s_words() -> None:
    engines = FakeEngines()
    words = "rank 64, and there is room for 16"
    told(engines, sql=f"refused: {words}", legal="loaded")
    cluster = await serving(engines, SQL, LEGAL)
    refused = condition(cluster, "AdaptersReady")
    assert refused["reason"] == "AdapterRefused"
    assert "1 of 1 pods refuse sql" in refused["message"]
    assert words in refused["message"]
    ready = condition(cluster, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "AdapterRefused")
    name = only_pod(cluster)["metadata"]["name"]
    parent = cluster.find(ATOM_DEPLOYMENT, "chat")
    assert parent["status"]["adapters"] == [
        {
            "name": "sql",
            "loadedPods": 0,
            "pods": [{"name": name, "state": "Refused", "message": words}],
        },
        {"name": "legal", "loadedPods": 1, "pods": [{"name": name, "state": "Loaded"}]},
    ]
    shown = "\n".join(status_lines(parent, [], []))
    assert "legal  loaded on 1 pods" in shown
    assert f"refused on {name}: {words}" in shown


async def test_a_pod_that_does_not_tell_is_not_taken_to_serve() -> None:
    cluster = await serving(FakeEngines(), SQL)
    silent = condition(cluster, "AdaptersReady")
    assert (silent["status"], silent["reason"]) == ("Unknown", "EngineSilent")


def problems(**changes: Any) -> str:
    found = plan_spec(Owner(KEY, "uid"), parsed(**changes), Surroundings(IMAGES))
    assert isinstance(found, tuple), "it is accepted"
    assert all(isinstance(each, FieldProblem) for each in found)
    return "; ".join(map(str, found))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (adapted(SQL, engine={}), "spec.adapters: pods have no room for adapters"),
        (adapted(SQL, SQL), "spec.adapters[sql]: stands there twice"),
        (adapted({**LEGAL, "name": "tiny"}), "is the model's own name"),
        (adapted({**SQL, "source": "pvc://other/sql"}), "pods do not mount claim other"),
        (adapted({**SQL, "source": "pvc://adapters/../x"}), "leads out of its place"),
        (
            adapted(SQL, LEGAL, engine={"lora": {**ROOM["lora"], "maxLoras": 1, "maxCpuLoras": 1}}),
            "2 adapters, and pods have room for 1; raise spec.engine.lora.maxCpuLoras",
        ),
        (adapted(engine={**ROOM, "extraArgs": ["--max-loras=8"]}), "spec.engine.lora.maxLoras"),
        (adapted(engine={**ROOM, "extraArgs": ["--lora-modules"]}), "use spec.adapters"),
        (adapted(engine={**ROOM, "extraArgs": ["--api-server-count", "2"]}), "needs one"),
    ],
)
def test_what_pods_cannot_serve_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    assert words in problems(**changes)


def test_room_for_adapters_is_part_of_the_plan() -> None:
    without = plan().capacity.capacity
    room = plan(**adapted(SQL))
    assert without is not None
    assert room.capacity.capacity is not None
    assert room.capacity.capacity.weights_bytes > without.weights_bytes
    report = dict(facts(room))
    assert report["adapters"] == f"room for 16: sql from {SQL_PATH}"
    assert "room for adapters" in report["weights"]
    most = {"lora": {"maxLoras": 256, "maxLoraRank": 512, "maxCpuLoras": 1024}}
    refused = plan(engine=most, accelerator={"type": "cpu", "memory": "2Gi"}).capacity
    assert refused.fits == "False"
    assert "spec.engine.lora" in refused.message
