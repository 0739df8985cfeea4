"""The cluster of the tests plays by a cluster's rules: shown on what operators stumble over."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    EVENT,
    JOB,
    POD,
    VOLUME_CLAIM,
    Manifest,
)
from atom_operator.kinds import LEADER_WORKER_SET
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.kinds import LIMIT_RANGE, RESOURCE_QUOTA
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.in_memory_cluster.quantities import requests_of, text, thousandths
from tests.support.in_memory_cluster.state import condition_of, is_ready
from tests.support.operator.builders_operator import atom_deployment, gpu_node

LABELS = {"app": "web"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
APART = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": LABELS}}


def container(image: str = "web:1", **requests: str) -> Manifest:
    return {"name": "web", "image": image, "resources": {"requests": requests}}


def deployment(cluster: InMemoryCluster, replicas: int = 1, **pod_spec: Any) -> Manifest:
    spec = {"containers": [container()], **pod_spec}
    manifest = {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "template": {"metadata": {"labels": LABELS, "annotations": {"a": "b"}}, "spec": spec},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        },
    }
    return cluster.state.create(DEPLOYMENT, manifest)


def change(cluster: InMemoryCluster, image: str) -> None:
    item = cluster.api.find(DEPLOYMENT, "web")
    item["spec"]["template"]["spec"]["containers"][0]["image"] = image
    item["metadata"]["generation"] += 1
    cluster.api.touch(item)


def cluster_of(*nodes: Manifest) -> InMemoryCluster:
    return InMemoryCluster(nodes=nodes or (gpu_node("a"), gpu_node("b")))


def quota(cluster: InMemoryCluster, **hard: str) -> None:
    named = {name.replace("_", "."): value for name, value in hard.items()}
    manifest = {"metadata": {"name": "team"}, "spec": {"hard": named}}
    cluster.state.create(RESOURCE_QUOTA, manifest)


def words(item: Manifest, kind: str) -> str:
    return str((condition_of(item, kind) or {}).get("message"))


def events(cluster: InMemoryCluster, reason: str) -> list[str]:
    found = [item for item in cluster.state.all(EVENT) if item["reason"] == reason]
    return [str(item["message"]) for item in found]


@pytest.mark.parametrize(
    ("quantity", "amount"),
    [
        ("500m", 500),
        ("1", 1000),
        ("1Gi", 1024**3 * 1000),
        ("1e3", 10**6),
        ("0.5Gi", 512 * 1024**2 * 1000),
        ("2k", 2 * 10**6),
    ],
)
def test_quantities_are_read_as_kubernetes_does(quantity: str, amount: int) -> None:
    assert thousandths(quantity) == amount
    assert thousandths(text(amount)) == amount


def test_a_pod_asks_for_its_containers_or_for_its_largest_step() -> None:
    sidecar = {**container(cpu="1"), "restartPolicy": "Always"}
    spec = {
        "containers": [container(cpu="2")],
        "initContainers": [container(cpu="9"), sidecar],
    }
    assert requests_of(spec)["cpu"] == 9000
    spec["initContainers"] = [sidecar, container(cpu="9")]
    assert requests_of(spec)["cpu"] == 10_000


def test_pods_are_made_from_the_template_and_serve_after_a_while() -> None:
    cluster = cluster_of()
    deployment(cluster, 2)
    cluster.advance(30)
    assert [is_ready(pod) for pod in cluster.pods] == [False, False]
    cluster.advance(60)
    assert [is_ready(pod) for pod in cluster.pods] == [True, True]
    assert {pod["metadata"]["annotations"]["a"] for pod in cluster.pods} == {"b"}
    assert {pod["spec"]["nodeName"] for pod in cluster.pods} == {"a", "b"}


def test_a_rollout_keeps_to_its_bounds_and_passes_its_deadline() -> None:
    cluster = cluster_of()
    deployment(cluster, 2)
    cluster.advance(120)
    change(cluster, "web:bad")
    for _ in range(80):
        cluster.advance(10)
        assert sum(map(is_ready, cluster.pods)) == 2
        assert len(cluster.pods) <= 3
    stored = cluster.api.find(DEPLOYMENT, "web")
    assert (condition_of(stored, "Progressing") or {})["reason"] == "ProgressDeadlineExceeded"
    change(cluster, "web:2")
    cluster.advance(400)
    assert (condition_of(stored, "Progressing") or {})["reason"] == "NewReplicaSetAvailable"
    assert stored["status"]["updatedReplicas"] == stored["status"]["readyReplicas"] == 2


def test_an_evicted_pod_stays_and_another_takes_its_place() -> None:
    cluster = cluster_of()
    deployment(cluster)
    cluster.advance(120)
    evicted = cluster.pods[0]
    cluster.kubelets.evict(evicted, 'Usage of EmptyDir volume "tmp" exceeds the limit "1Mi".')
    cluster.advance(120)
    assert [is_ready(pod) for pod in cluster.pods] == [True]
    assert len(cluster.state.all(POD)) == 2
    assert evicted["status"]["reason"] == "Evicted"


def test_what_a_kubelet_rejects_is_made_again_elsewhere() -> None:
    cluster = cluster_of()
    cluster.kubelets.rejecting.add("b")
    deployment(cluster)
    cluster.advance(15)
    cluster.kubelets.rejecting.clear()
    cluster.advance(120)
    failed = [pod for pod in cluster.state.all(POD) if pod["status"]["phase"] == "Failed"]
    assert {pod["status"]["reason"] for pod in failed} == {"UnexpectedAdmissionError"}
    assert len(cluster.pods) == 1


def test_a_quota_refuses_in_its_own_words() -> None:
    cluster = cluster_of()
    quota(cluster, pods="1")
    deployment(cluster, 2)
    cluster.advance(60)
    said = words(cluster.api.find(DEPLOYMENT, "web"), "ReplicaFailure")
    assert "exceeded quota: team, requested: pods=1, used: pods=1, limited: pods=1" in said
    assert "exceeded quota: team" in events(cluster, "FailedCreate")[0]
    assert cluster.api.find(RESOURCE_QUOTA, "team")["status"]["used"] == {"pods": "1"}
    cluster.api.find(RESOURCE_QUOTA, "team")["spec"]["hard"]["pods"] = "2"
    cluster.advance(60)
    assert len(cluster.pods) == 2


def test_a_quota_of_limits_wants_them_named_and_a_limit_range_names_them() -> None:
    cluster = cluster_of()
    quota(cluster, limits_memory="10Gi")
    deployment(cluster)
    cluster.advance(10)
    said = words(cluster.api.find(DEPLOYMENT, "web"), "ReplicaFailure")
    assert "failed quota: team: must specify limits.memory for: web" in said
    rule = {"type": "Container", "default": {"memory": "1Gi"}, "max": {"memory": "2Gi"}}
    made = {"metadata": {"name": "limits"}, "spec": {"limits": [rule]}}
    cluster.state.create(LIMIT_RANGE, made)
    cluster.advance(30)
    (pod,) = cluster.pods
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"memory": "1Gi"}


@pytest.mark.parametrize(
    ("resource", "offered"),
    [("memory", "1Ti"), ("cpu", "64"), ("ephemeral-storage", "1Ti"), ("hugepages-2Mi", "1Gi")],
)
def test_the_scheduler_counts_every_resource(resource: str, offered: str) -> None:
    node = gpu_node("a")
    node["status"]["allocatable"][resource] = offered
    cluster = cluster_of(node)
    asked = container()
    asked["resources"]["requests"] = {resource: offered}
    deployment(cluster, 2, containers=[asked])
    cluster.advance(10)
    (waiting,) = [pod for pod in cluster.pods if not pod["spec"].get("nodeName")]
    expected = f"0/1 nodes are available: 1 Insufficient {resource}."
    assert words(waiting, "PodScheduled") == expected
    assert events(cluster, "FailedScheduling") == [expected]


def test_a_node_takes_so_many_pods() -> None:
    node = gpu_node("a")
    node["status"]["allocatable"]["pods"] = "1"
    cluster = cluster_of(node, gpu_node("b", cordoned=True))
    deployment(cluster, 2)
    cluster.advance(10)
    (waiting,) = [pod for pod in cluster.pods if not pod["spec"].get("nodeName")]
    assert words(waiting, "PodScheduled") == (
        "0/2 nodes are available: 1 Too many pods, 1 node(s) were unschedulable."
    )


@pytest.mark.parametrize(
    ("fields", "objection"),
    [
        (
            {"containers": [{**container(), "ports": [{"containerPort": 1, "hostPort": 80}]}]},
            "node(s) didn't have free ports for the requested pod ports",
        ),
        (
            {"affinity": {"podAntiAffinity": {REQUIRED: [APART]}}},
            "node(s) didn't satisfy existing pods anti-affinity rules",
        ),
    ],
    ids=["host port", "anti-affinity"],
)
def test_pods_that_cannot_share_a_node_have_one_each(
    fields: dict[str, Any], objection: str
) -> None:
    cluster = cluster_of()
    deployment(cluster, replicas=3, **fields)
    cluster.advance(120)
    placed = [pod["spec"].get("nodeName") for pod in cluster.pods]
    assert sorted(map(str, placed)) == ["None", "a", "b"]
    (waits,) = [pod for pod in cluster.pods if not pod["spec"].get("nodeName")]
    assert words(waits, "PodScheduled") == f"0/2 nodes are available: 2 {objection}."


def test_a_changed_spec_wakes_the_operator_and_its_own_status_does_not() -> None:
    cluster = cluster_of()
    operator = OperatorClient(cluster)
    cluster.api.create(ATOM_DEPLOYMENT, atom_deployment())
    cluster.advance(600)
    passes = operator.passes["chat"]
    cluster.settle()
    assert operator.passes["chat"] == passes
    cluster.api.change_spec(ATOM_DEPLOYMENT, "chat", engine={"maxModelLen": 512})
    cluster.settle()
    operator.close()
    parent = cluster.api.find(ATOM_DEPLOYMENT, "chat")
    assert parent["status"]["observedGeneration"] == parent["metadata"]["generation"]


def test_a_claim_of_one_node_is_not_attached_to_a_second() -> None:
    cluster = cluster_of()
    claim = {"metadata": {"name": "disk"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "disk"}}]
    deployment(cluster, 2, volumes=volumes)
    cluster.advance(10)
    assert 'persistentvolumeclaim "disk" not found' in words(cluster.pods[0], "PodScheduled")
    cluster.state.create(VOLUME_CLAIM, claim)
    cluster.advance(120)
    assert sorted(is_ready(pod) for pod in cluster.pods) == [False, True]
    assert "Multi-Attach" in events(cluster, "FailedAttachVolume")[0]


def test_a_sidecar_is_in_every_pod_and_a_policy_refuses() -> None:
    cluster = cluster_of()
    cluster.state.sidecars.append({"name": "proxy", "image": "proxy:1"})
    deployment(cluster)
    cluster.advance(120)
    assert [item["name"] for item in cluster.pods[0]["spec"]["containers"]] == ["web", "proxy"]
    cluster.state.policies.append(lambda kind, _: "no pods today" if kind == POD else None)
    cluster.state.delete_pod(cluster.pods[0])
    cluster.advance(30)
    assert "denied the request: no pods today" in words(
        cluster.api.find(DEPLOYMENT, "web"), "ReplicaFailure"
    )


def job(cluster: InMemoryCluster, image: str = "web:1", **spec: Any) -> Manifest:
    pod_spec = {"restartPolicy": "Never", "containers": [container(image)]}
    template = {"metadata": {"labels": {"job": "x"}}, "spec": pod_spec}
    manifest = {"metadata": {"name": "load"}, "spec": {"template": template, **spec}}
    return cluster.state.create(JOB, manifest)


def test_a_job_that_may_have_no_pod_says_so_in_an_event_alone() -> None:
    cluster = cluster_of()
    quota(cluster, pods="0")
    made = job(cluster)
    cluster.advance(3600)
    assert "conditions" not in made["status"]
    assert "active" not in made["status"]
    assert "exceeded quota: team" in events(cluster, "FailedCreate")[0]


def test_a_job_ends_well_by_its_retries_or_by_its_deadline() -> None:
    cluster = cluster_of()
    well = job(cluster)
    cluster.advance(60)
    assert condition_of(well, "Complete")
    cluster.state.remove(JOB, well)
    badly = job(cluster, "web:bad", backoffLimit=2)
    cluster.advance(600)
    assert (condition_of(badly, "Failed") or {})["reason"] == "BackoffLimitExceeded"
    cluster.state.remove(JOB, badly)
    late = job(cluster, "web:typo", activeDeadlineSeconds=600)
    cluster.advance(500)
    assert "conditions" not in late["status"], "a pod that waits for its image fails no Job"
    cluster.advance(200)
    assert (condition_of(late, "Failed") or {})["reason"] == "DeadlineExceeded"


def test_a_lost_nodes_pods_are_replaced_and_stay_until_it_is_back() -> None:
    cluster = cluster_of()
    deployment(cluster, 2)
    cluster.advance(120)
    cluster.lose_node("a")
    cluster.advance(60)
    assert sorted(is_ready(pod) for pod in cluster.pods) == [False, True]
    cluster.advance(600)
    assert [is_ready(pod) for pod in cluster.pods] == [True, True]
    assert len(cluster.state.all(POD)) == 3, "nobody knows whether the first one runs"
    cluster.return_node("a")
    cluster.advance(60)
    assert len(cluster.state.all(POD)) == 2


def group(cluster: InMemoryCluster, size: int = 2, replicas: int = 2) -> Manifest:
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [container()]}}
    groups = {"size": size, "leaderTemplate": template, "workerTemplate": template}
    manifest = {
        "metadata": {"name": "web"},
        "spec": {"replicas": replicas, "leaderWorkerTemplate": groups},
    }
    return cluster.state.create(LEADER_WORKER_SET, manifest)


def test_groups_are_made_anew_as_a_whole_and_replaced_one_by_one() -> None:
    cluster = cluster_of()
    stored = group(cluster)
    cluster.advance(120)
    assert (stored["status"]["readyReplicas"], len(cluster.pods)) == (2, 4)
    names = [pod["metadata"]["uid"] for pod in cluster.pods]
    worker = cluster.api.find(POD, "web-0-1")
    cluster.kubelets.evict(worker, "The node was low on resource: ephemeral-storage.")
    cluster.advance(120)
    assert stored["status"]["readyReplicas"] == 2
    assert len({pod["metadata"]["uid"] for pod in cluster.pods} & set(names)) == 2
    template = stored["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    template["spec"]["containers"][0]["image"] = "web:2"
    cluster.api.touch(stored)
    for _ in range(60):
        cluster.advance(10)
        assert sum(map(is_ready, cluster.pods)) >= 2
    assert stored["status"]["updatedReplicas"] == stored["status"]["readyReplicas"] == 2


def test_a_group_falls_with_a_worker_that_is_deleted() -> None:
    cluster = cluster_of()
    stored = group(cluster, replicas=1)
    cluster.advance(120)
    before = {pod["metadata"]["uid"] for pod in cluster.pods}
    cluster.state.delete_pod(cluster.api.find(POD, "web-0-1"))
    cluster.settle()
    assert stored["status"]["readyReplicas"] == 0
    cluster.advance(120)
    assert stored["status"]["readyReplicas"] == 1
    assert not before & {pod["metadata"]["uid"] for pod in cluster.pods}


def test_a_worker_that_its_node_rejects_is_replaced_alone_and_its_leader_waits() -> None:
    cluster = cluster_of(gpu_node("a"))
    cluster.advance(1)
    stored = group(cluster, replicas=1)
    cluster.state.policies.append(lambda _kind, item: _late(item, "web-0-1"))
    cluster.advance(30)
    leader = cluster.api.find(POD, "web-0")["metadata"]["uid"]
    cluster.state.policies.clear()
    cluster.kubelets.rejecting.add("a")
    cluster.advance(90)
    assert "UnexpectedAdmissionError" in {item["reason"] for item in cluster.state.all(EVENT)}
    assert cluster.api.find(POD, "web-0")["metadata"]["uid"] == leader
    assert not is_ready(cluster.api.find(POD, "web-0"))
    cluster.kubelets.rejecting.clear()
    cluster.advance(400)
    assert cluster.api.find(POD, "web-0")["metadata"]["uid"] == leader
    assert stored["status"]["readyReplicas"] == 1


def _late(item: Manifest, name: str) -> str | None:
    return "not yet" if item["metadata"]["name"] == name else None


def test_an_eviction_waits_for_the_disruption_budget() -> None:
    cluster = cluster_of()
    budget = {"selector": {"matchLabels": LABELS}, "maxUnavailable": 1}
    cluster.state.create(DISRUPTION_BUDGET, {"metadata": {"name": "web"}, "spec": budget})
    deployment(cluster, 4)
    cluster.advance(120)
    cluster.drain("a")
    for _ in range(40):
        cluster.advance(10)
        assert sum(map(is_ready, cluster.pods)) >= 3
    assert {pod["spec"]["nodeName"] for pod in cluster.pods} == {"b"}
