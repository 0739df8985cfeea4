"""Groups of pods by LeaderWorkerSet's own controller: what it makes of what the operator renders.

A few lines answer in the engine's place; the engine itself is test_engine_over_nodes.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import neighbours, upstream_crds
from tests.support.cluster.client_pod import asking
from tests.support.cluster.fault_proxy import fault_proxy
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.cluster.quick_pods import condition, engine_image, status, suspend, wait_ready

pytestmark = [pytest.mark.cluster, pytest.mark.neighbour, pytest.mark.usefixtures("only_operator")]

GROUP = {"tensor": 2, "nodes": 2}
CRD = "leaderworkersets.leaderworkerset.x-k8s.io"
# Nothing is looked at again by itself within these tests.
NO_RESYNC = {"ATOM_OPERATOR_RESYNC_SECONDS": "3600"}


@pytest.fixture(scope="module")
def image(live_cluster: LiveCluster) -> str:
    neighbours.ensure("lws")
    return engine_image(live_cluster)


@pytest.fixture
def grouped(namespaced: LiveCluster, image: str, tmp_path: Path) -> Iterator[LiveCluster]:
    """A model of one group of two pods, Ready."""
    with operator(namespaced, tmp_path / "operator.log"):
        neighbours.apply(namespaced, model(image))
        wait_ready(namespaced)
        yield namespaced


def model(image: str, **annotations: str) -> dict[str, Any]:
    made = neighbours.quick_model(image, parallelism=GROUP)
    made["spec"]["template"]["metadata"] = {"annotations": annotations}
    return dict(made)


def pods(cluster: LiveCluster) -> dict[str, dict[str, Any]]:
    selector = "--selector=serving.atom.dev/deployment=chat"
    names = cluster.kubectl("get", "pods", selector, "--output=name").stdout.split()
    found = {name.partition("/")[2]: cluster.get("pod", name.partition("/")[2]) for name in names}
    return {name: pod for name, pod in found.items() if pod is not None}


def variables(cluster: LiveCluster, pod: str) -> dict[str, str]:
    text = cluster.kubectl("exec", pod, "--container=engine", "--", "env").stdout
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def test_a_group_forms_and_each_pod_knows_its_place(grouped: LiveCluster) -> None:
    assert set(pods(grouped)) == {"chat-0", "chat-0-1"}
    leader, worker = (variables(grouped, name) for name in ("chat-0", "chat-0-1"))
    for place, of in (("0", leader), ("1", worker)):
        assert of["NODE_RANK"] == place
        assert (of["NNODES"], of["WORLD_SIZE"], of["LOCAL_WORLD_SIZE"]) == ("2", "2", "1")
        assert of["MASTER_ADDR"] == leader["LWS_LEADER_ADDRESS"]
    assert leader["MASTER_ADDR"].startswith("chat-0.")
    assert (status(grouped)["replicas"], status(grouped)["readyReplicas"]) == (1, 1)
    groups = grouped.get("leaderworkerset", "chat") or {}
    told = {item["type"]: item["status"] for item in groups["status"]["conditions"]}
    assert told["Available"] == "True"
    assert "observedGeneration" not in groups["status"], "the operator may rely on it now"


@pytest.mark.slow
def test_only_the_leader_is_asked(grouped: LiveCluster) -> None:
    selector = "--selector=kubernetes.io/service-name=chat"
    path = "jsonpath={.items[*].endpoints[*].targetRef.name}"
    listed = grouped.kubectl("get", "endpointslices", selector, f"--output={path}").stdout
    assert listed.split() == ["chat-0"]


@pytest.mark.slow
def test_groups_are_watched_and_not_asked_for(
    namespaced: LiveCluster, image: str, tmp_path: Path
) -> None:
    """A change that no pod sees is heard of too: a label that is ours comes back."""
    label = "app.kubernetes.io/managed-by"

    def labels() -> dict[str, str]:
        groups = namespaced.get("leaderworkerset", "chat") or {"metadata": {"labels": {}}}
        return dict(groups["metadata"]["labels"])

    with fault_proxy(namespaced.kubeconfig) as proxy:
        through = replace(namespaced, kubeconfig=proxy.kubeconfig(tmp_path / "kubeconfig"))
        with operator(through, tmp_path / "operator.log", NO_RESYNC):
            neighbours.apply(namespaced, model(image))
            wait_ready(namespaced)
            since, ours = len(proxy.log), labels()[label]
            namespaced.kubectl("label", "--overwrite", "leaderworkerset/chat", f"{label}=else")
            namespaced.wait("label of ours", lambda: labels()[label] == ours)
            asked = [one for one in proxy.log if one.path.endswith("/leaderworkersets")]
            assert any(one.is_watch for one in asked)
            late = [one for one in proxy.log[since:] if one in asked and not one.is_watch]
            assert late == []


@pytest.mark.slow
def test_groups_whose_crd_goes_and_comes_back(
    namespaced: LiveCluster, image: str, tmp_path: Path
) -> None:
    with operator(namespaced, tmp_path / "operator.log", NO_RESYNC):
        neighbours.apply(namespaced, model(image))
        wait_ready(namespaced)
        try:
            namespaced.kubectl("delete", "crd", CRD)
            namespaced.wait(
                "its absence in the status",
                lambda: condition(namespaced, "Accepted").get("reason") == "ApiNotServed",
            )
        finally:
            upstream_crds.install(namespaced)
        wait_ready(namespaced, seconds=180.0)
        namespaced.kubectl("scale", "atomd/chat", "--replicas=2")
        namespaced.wait("two groups", lambda: status(namespaced).get("readyReplicas") == 2)


@pytest.mark.slow
def test_a_group_that_loses_a_pod_is_made_anew(grouped: LiveCluster) -> None:
    before = {name: pod["metadata"]["uid"] for name, pod in pods(grouped).items()}
    grouped.kubectl("delete", "pod", "chat-0-1", "--wait=false")

    def replaced() -> bool:
        now = pods(grouped)
        return set(now) == set(before) and all(
            pod["metadata"]["uid"] != before[name] for name, pod in now.items()
        )

    grouped.wait("another group", replaced)
    wait_ready(grouped)


@pytest.mark.slow
def test_a_change_replaces_the_group_and_is_ready_when_it_is(
    grouped: LiveCluster, image: str
) -> None:
    before = status(grouped)["revision"]
    neighbours.apply(grouped, model(image, note="second"))
    grouped.wait("another revision", lambda: status(grouped)["revision"] != before)
    wait_ready(grouped)
    notes = {pod["metadata"]["annotations"]["note"] for pod in pods(grouped).values()}
    assert notes == {"second"}


@pytest.mark.slow
def test_groups_are_added_and_taken_away_by_number(grouped: LiveCluster) -> None:
    for replicas in (2, 1):
        grouped.kubectl("scale", "atomd/chat", f"--replicas={replicas}")
        grouped.wait(
            f"{replicas} groups",
            lambda replicas=replicas: (
                condition(grouped, "Ready").get("status") == "True"
                and status(grouped).get("readyReplicas") == replicas
                and len(pods(grouped)) == 2 * replicas
            ),
        )


@pytest.mark.slow
def test_suspended_groups_go_and_come_back_in_their_number(grouped: LiveCluster) -> None:
    grouped.kubectl("scale", "atomd/chat", "--replicas=2")
    grouped.wait("two groups", lambda: status(grouped).get("readyReplicas") == 2)
    suspend(grouped, True)
    assert (grouped.get("leaderworkerset", "chat") or {})["spec"]["replicas"] == 0
    grouped.wait("the end of the last pod", lambda: not pods(grouped))
    suspend(grouped, False)
    assert set(pods(grouped)) == {"chat-0", "chat-0-1", "chat-1", "chat-1-1"}


@pytest.mark.slow
def test_a_switch_of_nodes_fails_no_request(grouped: LiveCluster, image: str) -> None:
    """The other kind of workload takes over once it is ready, and not before."""
    one_pod = model(image)
    del one_pod["spec"]["parallelism"]
    theirs = ("pods", "--selector=leaderworkerset.sigs.k8s.io/name=chat", "--output=name")
    with asking(grouped, image, "chat") as asked:
        neighbours.apply(grouped, one_pod)
        wait_ready(grouped)
        grouped.wait("the end of the group", lambda: not grouped.kubectl("get", *theirs).stdout)
        assert grouped.get("deployment", "chat") is not None
        neighbours.apply(grouped, model(image))
        wait_ready(grouped)
        grouped.wait("the end of the one", lambda: set(pods(grouped)) == {"chat-0", "chat-0-1"})
        assert grouped.get("deployment", "chat") is None
    assert asked.answered
    assert asked.failures == []


@pytest.mark.slow
def test_a_group_that_fails_for_ever_gives_way_to_the_one_before(
    grouped: LiveCluster, image: str
) -> None:
    before = status(grouped)["revision"]
    broken = model(image)
    container = broken["spec"]["template"]["spec"]["containers"][0]
    container["command"] = ["sh", "-c", "echo no such model >&2; exit 3"]
    broken["spec"]["rollout"]["progressDeadlineSeconds"] = 30
    neighbours.apply(grouped, broken)
    grouped.wait(
        "rollback", lambda: condition(grouped, "Degraded").get("reason") == "RolledBack", 120
    )
    assert "exit code 3" in condition(grouped, "Degraded")["message"]
    assert status(grouped)["revision"] == before
    grouped.wait("service", lambda: condition(grouped, "Available").get("status") == "True")
    listed = grouped.kubectl("get", "events", "--output=json").stdout
    found = [item for item in json.loads(listed)["items"] if item["reason"] == "PodFailing"]
    times = sum(item.get("count") or 1 for item in found if item["message"].count("exit code 3"))
    assert 1 <= times <= 2, "said once for each condition, not with each new group"


@pytest.mark.slow
def test_nothing_is_left_of_a_group(grouped: LiveCluster) -> None:
    theirs = ("statefulset,pod", "--selector=leaderworkerset.sigs.k8s.io/name=chat")
    ours = ("leaderworkerset,service", "--selector=serving.atom.dev/deployment=chat")

    def left(kinds: str, of: str) -> list[str]:
        return grouped.kubectl("get", kinds, of, "--output=name").stdout.split()

    assert left(*theirs), "what is asked for below was there"
    grouped.kubectl("delete", "atomd", "chat")
    grouped.wait("end of everything", lambda: not left(*theirs) and not left(*ours))
