"""A value that cannot be read, wherever it stands in a spec, is a condition and never an exception:
the status always reaches the generation that it is about."""

from __future__ import annotations

import random
from typing import Any

import pytest

from atom_operator.children.workload import pod_template
from atom_operator.cluster.errors import RefusedError
from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, JOB
from atom_operator.integration_values import Site
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    atom_deployment,
    cluster_with,
    condition,
    gpu_node,
    plan,
    reconciler,
    unschedulable_pod,
)
from tests.support.operator.overlays import odd_values

AMD: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-8B", "tokenSecretRef": {"name": "hub"}},
    "accelerator": {"type": "amd", "product": "MI300X", "preflight": True},
    "engine": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
    "autoscaling": {"maxReplicas": 3, "method": "HPA"},
    "networkPolicy": {"clients": [{"podSelector": {"matchLabels": {"app": "x"}}}]},
    "gateway": {"httpRoute": {"parentRefs": [{"name": "gate"}], "hostnames": ["a.test"]}},
    "monitoring": {"podMonitor": {"labels": {"a": "b"}}, "alerts": {}, "dashboard": {}},
    "rollout": {"drainSeconds": 30, "strategy": "InPlace"},
    "cache": {"compile": {"claim": "kernels"}},
}
WEIGHTS: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-0.6B", "revision": "v1"},
    "cache": {"weights": {"claim": "models"}},
}
SITE = Site(template_forbidden=frozenset())


def template() -> dict[str, Any]:
    """What is rendered, and what users add to it most."""
    rendered = pod_template(plan(**AMD))
    spec = rendered["spec"]
    rack = {"key": "rack", "operator": "Gt", "values": ["5"]}
    spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = {
        "nodeSelectorTerms": [{"matchExpressions": [rack], "matchFields": [rack]}]
    }
    spec |= {"nodeSelector": {"kubernetes.io/hostname": "a"}, "imagePullSecrets": [{"name": "p"}]}
    spec["priorityClassName"] = "high"
    return rendered


def cases() -> list[tuple[str, dict[str, Any]]]:
    of_template = [(name, {**AMD, "template": odd}) for name, odd in odd_values(template())]
    of_spec = list(odd_values({**AMD, "template": {"spec": {"nodeSelector": {"a": "b"}}}}))
    return [*of_template, *of_spec]


async def tries(name: str, changes: dict[str, Any]) -> None:
    """Pods run, one waits for a node, and then comes the odd spec."""
    cluster = cluster_with(**AMD)
    cluster.nodes = [gpu_node("a"), gpu_node("b", taints=[{"key": "t", "effect": "NoSchedule"}])]
    operator = reconciler(cluster, site=SITE)
    await operator.reconcile(KEY)
    finish_rollout(cluster)
    cluster.put_pod(unschedulable_pod(cluster, "0/2 nodes are available"))
    stored = cluster.find(ATOM_DEPLOYMENT, "chat")
    stored["spec"] = atom_deployment(**changes)["spec"]
    stored["metadata"]["generation"] += 1
    await operator.reconcile(KEY)
    status = cluster.find(ATOM_DEPLOYMENT, "chat")["status"]
    assert status["observedGeneration"] == stored["metadata"]["generation"], name
    for item in status["conditions"]:
        assert item["observedGeneration"] == stored["metadata"]["generation"], name
        assert item["message"], name


async def test_some_odd_values_reach_the_status() -> None:
    for name, changes in random.Random(36).sample(cases(), 200):
        await tries(name, changes)


@pytest.mark.slow
async def test_every_odd_value_reaches_the_status() -> None:
    for name, changes in cases():
        await tries(name, changes)


@pytest.mark.parametrize("values", [["r7"], [], ["5", "6"], ["²"], ["9" * 5000]])
async def test_a_comparison_that_cannot_be_made_matches_no_node(values: list[str]) -> None:
    """The API server stores it; the scheduler finds no node with it."""
    rack = {"key": "rack", "operator": "Gt", "values": values}
    required = {"nodeSelectorTerms": [{"matchExpressions": [rack]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    cluster = cluster_with(**AMD, template={"spec": {"affinity": affinity}})
    cluster.nodes = [gpu_node("a", labels={"rack": "7"})]
    await reconciler(cluster).reconcile(KEY)
    cluster.put_pod(unschedulable_pod(cluster, "0/1 nodes are available"))
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "Accepted")["status"] == "True"
    assert (
        "required node affinity of spec.template wants rack Gt"
        in (condition(cluster, "Scheduled")["message"])
    )


async def test_what_the_api_server_refuses_is_not_accepted_in_its_words() -> None:
    cluster = cluster_with()
    operator = reconciler(cluster)
    await operator.reconcile(KEY)
    finish_rollout(cluster)
    before = cluster.find(DEPLOYMENT, "chat")["metadata"]["generation"]
    words = "spec.template.spec.dnsPolicy: Unsupported value"
    cluster.refused_dry_run = RefusedError(
        f'dry run of Deployment in default: Deployment.apps "chat-x" is invalid: {words}', 422
    )
    template = {"spec": {"dnsPolicy": "Sometimes"}}
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", template=template)
    await operator.reconcile(KEY)
    accepted = condition(cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidSpec")
    assert accepted["message"] == f"spec.template: the API server refuses such pods: {words}"
    assert cluster.find(DEPLOYMENT, "chat")["metadata"]["generation"] == before
    cluster.refused_dry_run = None
    await operator.reconcile(KEY)
    assert condition(cluster, "Accepted")["status"] == "True"


async def test_quota_is_no_fault_of_a_template() -> None:
    cluster = cluster_with(template={"spec": {"dnsPolicy": "Default"}})
    cluster.refused_dry_run = RefusedError("exceeded quota: deployments", 403)
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "Accepted")["status"] == "True"


async def test_a_template_is_judged_once() -> None:
    cluster = cluster_with(template={"spec": {"dnsPolicy": "Default"}})
    operator = reconciler(cluster)
    for _ in range(3):
        await operator.reconcile(KEY)
    assert cluster.reads.count("dry run Deployment") == 1
    await reconciler(cluster).reconcile(KEY)  # nor by an operator that starts anew
    assert cluster.reads.count("dry run Deployment") == 1


async def test_what_the_api_server_refuses_of_jobs_is_not_accepted_in_its_words() -> None:
    """Before any Job is asked for, and whether or not this model needs one."""
    for changes in ({}, WEIGHTS):
        cluster = cluster_with(**changes)
        operator = reconciler(cluster)
        await operator.reconcile(KEY)
        words = "spec.template.spec.dnsPolicy: Unsupported value"
        cluster.refused_dry_run = RefusedError(f'Job.batch "chat-x" is invalid: {words}', 422)
        jobs = {"template": {"spec": {"dnsPolicy": "Sometimes"}}}
        cluster.change_spec(ATOM_DEPLOYMENT, "chat", jobs=jobs)
        before = len(cluster.names(JOB))
        await operator.reconcile(KEY)
        accepted = condition(cluster, "Accepted")
        assert (
            accepted["message"] == f"spec.jobs.template: the API server refuses such pods: {words}"
        )
        assert len(cluster.names(JOB)) == before
        cluster.refused_dry_run = None
        await operator.reconcile(KEY)
        assert condition(cluster, "Accepted")["status"] == "True"


async def test_a_template_of_jobs_is_judged_once() -> None:
    cluster = cluster_with(jobs={"template": {"spec": {"dnsPolicy": "Default"}}})
    operator = reconciler(cluster)
    for _ in range(3):
        await operator.reconcile(KEY)
    assert cluster.reads.count("dry run Job") == 1
    await reconciler(cluster).reconcile(KEY)  # nor by an operator that starts anew
    assert cluster.reads.count("dry run Job") == 1
    assert cluster.reads.count("dry run Deployment") == 0
