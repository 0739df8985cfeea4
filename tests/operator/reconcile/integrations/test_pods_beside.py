"""Jobs, frontends and the endpoint picker are pods like the engine's: labels, placement, pull
secrets, account and limits, by spec.template and by an overlay of their own."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from atom_operator.children.beside_engines.job import inspection_job, weights_job
from atom_operator.children.render import render
from atom_operator.domain import DEPLOYMENT, JOB, SERVICE_ACCOUNT, ChildKey, Manifest, Plan
from atom_operator.integration_values import Site, TemplateFeature
from atom_operator.webhook.reviewer import faults_of
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    TINY_CONFIG,
    atom_deployment,
    cluster_with,
    condition,
    plan,
    reconciler,
)
from tests.support.operator.overlays import odd_directives, odd_fields

BASE: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-0.6B"},
    "accelerator": {"type": "cpu", "memory": "16Gi"},
    "cache": {"weights": {"claim": "models"}},
}


def _deployment(name: str) -> Callable[[Plan], Manifest]:
    def template(of: Plan) -> Manifest:
        found: Manifest = render(of)[ChildKey(DEPLOYMENT, name)]["spec"]["template"]
        return found

    return template


def _weights(of: Plan) -> Manifest:
    job = weights_job(of)
    assert job is not None
    found: Manifest = job.manifest["spec"]["template"]
    return found


def _inspection(of: Plan) -> Manifest:
    found: Manifest = inspection_job(of).manifest["spec"]["template"]
    return found


# By the kind of pod: its container, its finished template, and a spec with its overlay.
PODS: dict[str, tuple[str, Callable[[Plan], Manifest], Callable[[Any], dict[str, Any]]]] = {
    "frontend": (
        "frontend",
        _deployment("chat-frontend"),
        lambda overlay: {"frontend": {"template": overlay}},
    ),
    "picker": (
        "picker",
        _deployment("chat-picker"),
        lambda overlay: {"gateway": {"prefixAware": True, "pickerTemplate": overlay}},
    ),
    "weights": ("prepare", _weights, lambda overlay: {"jobs": {"template": overlay}}),
    "look": ("prepare", _inspection, lambda overlay: {"jobs": {"template": overlay}}),
}
PLACES = {"frontend": "spec.frontend.template", "picker": "spec.gateway.pickerTemplate"}
# Of pods, whichever overlay says so.
PROPERTIES: dict[str, dict[str, Any]] = {
    "labels": {"metadata": {"labels": {"team": "a"}}},
    "annotations": {"metadata": {"annotations": {"example.org/a": "b"}}},
    "tolerations": {"spec": {"tolerations": [{"key": "gpus", "operator": "Exists"}]}},
    "node selector": {"spec": {"nodeSelector": {"pool": "a"}}},
    "pull secrets": {"spec": {"imagePullSecrets": [{"name": "registry"}]}},
    "priority": {"spec": {"priorityClassName": "high"}},
    "dns": {"spec": {"dnsConfig": {"nameservers": ["10.0.0.10"]}}},
    "user": {"spec": {"securityContext": {"runAsUser": 1000}}},
    "aliases": {"spec": {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}]}},
}
NODES = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": NODES}}


def of(pod: str, overlay: dict[str, Any] | None = None, **changes: Any) -> Manifest:
    _, template, asked = PODS[pod]
    return template(plan(**{**BASE, **asked(overlay), **changes}))


def holds(found: Any, said: Any) -> bool:
    """Whether all that is said is there."""
    if isinstance(said, dict):
        return all(name in found and holds(found[name], item) for name, item in said.items())
    if isinstance(said, list):
        return all(item in found for item in said)
    return bool(found == said)


@pytest.mark.parametrize(("pod", "name"), product(PODS, PROPERTIES))
def test_a_property_of_the_engines_pods_is_theirs_too(pod: str, name: str) -> None:
    assert holds(of(pod, None, template=PROPERTIES[name]), PROPERTIES[name])


@pytest.mark.parametrize(("pod", "name"), product(PODS, PROPERTIES))
def test_a_property_is_said_of_them_alone(pod: str, name: str) -> None:
    overlay = PROPERTIES[name]
    assert holds(of(pod, overlay), overlay)
    engine = _deployment("chat")(plan(**{**BASE, **PODS[pod][2](overlay)}))
    assert not holds(engine, overlay)


@pytest.mark.parametrize("pod", PODS)
def test_affinity_and_resources_are_set_by_their_overlay(pod: str) -> None:
    limits = {"cpu": "50m", "memory": "64Mi"}
    work = {"name": PODS[pod][0], "resources": {"limits": limits}}
    spec = of(pod, {"spec": {"affinity": AFFINITY, "containers": [work]}})["spec"]
    assert spec["affinity"] == AFFINITY
    (container,) = spec["containers"]
    assert container["resources"]["limits"] == limits
    assert container["resources"]["requests"] == limits, "no more than the limit is asked for"


@pytest.mark.parametrize("pod", PODS)
def test_a_quota_that_wants_limits_admits_them(pod: str) -> None:
    spec = of(pod)["spec"]
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        for side, name in product(("requests", "limits"), ("cpu", "memory")):
            assert container["resources"][side][name], (container["name"], side, name)


@pytest.mark.parametrize("pod", ["picker", "weights", "look"])
def test_none_of_them_is_taken_for_an_engine(pod: str) -> None:
    both = {"gateway": {"prefixAware": True}} if pod != "picker" else {}
    engine = set(
        _deployment("chat")(plan(**BASE, gateway={"prefixAware": True}))["metadata"][
            "labels"
        ].items()
    )
    labels = of(pod, None, **both)["metadata"]["labels"]
    assert not engine & set(labels.items()) - {("app.kubernetes.io/part-of", "atom-platform")} - {
        ("app.kubernetes.io/managed-by", "atom-operator"),
        ("app.kubernetes.io/instance", "chat"),
    }


@pytest.mark.parametrize("pod", ["frontend", "picker"])
async def test_an_overlay_of_theirs_is_judged_as_every_other(pod: str) -> None:
    container, _, asked = PODS[pod]
    for overlay, reason, words in (
        ({"spec": {"containers": 7}}, "InvalidSpec", "spec.containers: must be a list"),
        ({"spec": {"hostPID": True}}, "TemplateForbidden", "spec.hostPID: hostPID is not allowed"),
        ({"spec": {"containers": None}}, "InvalidSpec", f"container {container} does the work"),
        (
            {"metadata": {"labels": None}},
            "InvalidSpec",
            "pods are selected by it; leave it as it is",
        ),
    ):
        cluster = cluster_with(**{**BASE, **asked(overlay)})
        await reconciler(cluster).reconcile(KEY)
        accepted = condition(cluster, "Accepted")
        assert (accepted["status"], accepted["reason"]) == ("False", reason)
        assert PLACES[pod] in accepted["message"]
        assert words in accepted["message"]


@pytest.mark.parametrize("pod", ["frontend", "picker"])
def test_no_odd_overlay_of_theirs_is_an_exception(pod: str) -> None:
    _, template, asked = PODS[pod]
    every = list(dict((*odd_fields(), *odd_directives())).items())
    lenient = Site(template_forbidden=frozenset())
    for name, overlay in random.Random(15).sample(every, 400):
        changes = {**BASE, **asked(overlay)}
        faults = faults_of(KEY, atom_deployment(**changes))
        assert all(fault.field.startswith(PLACES[pod]) for fault in faults), (name, faults)
        if not faults:
            template(plan(site=lenient, **changes))


def test_the_list_of_rights_is_whole() -> None:
    assert Site().template_forbidden == frozenset(TemplateFeature)


BUCKET: dict[str, Any] = {
    "model": {"source": "s3://models/qwen", "config": TINY_CONFIG},
    "cache": {"weights": {"claim": "models"}},
}
ROLE = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/models"}
ANNOTATED: dict[str, Any] = {"objects": {"serviceAccount": {"annotations": ROLE}}}


@pytest.mark.parametrize(
    ("changes", "account"),
    [
        ({"model": {"source": "s3://models/qwen"}}, "chat"),  # a look at what it is
        (BUCKET, "chat"),  # an identity may be given by the account's name alone
        (BASE | ANNOTATED, "chat"),
        (BUCKET | ANNOTATED, "chat"),
        (BUCKET | {"model": {**BUCKET["model"], "s3": {"secretRef": {"name": "keys"}}}}, None),
        (BASE, None),
    ],
)
async def test_jobs_run_as_the_account_that_a_cloud_gives_a_role(
    changes: dict[str, Any], account: str | None
) -> None:
    cluster = cluster_with(**changes)
    namespaces = {"metadata": {"name": "default", "namespace": "default"}}
    cluster.create(SERVICE_ACCOUNT, {**namespaces, "imagePullSecrets": [{"name": "registry"}]})
    await reconciler(cluster).reconcile(KEY)
    (job,) = cluster.names(JOB)
    spec = cluster.find(JOB, job)["spec"]["template"]["spec"]
    assert spec.get("serviceAccountName") == account
    if account is None:
        return
    made = cluster.find(SERVICE_ACCOUNT, account)
    assert made["imagePullSecrets"] == [{"name": "registry"}]
    if "objects" in changes:
        assert made["metadata"]["annotations"] == ROLE


@pytest.mark.parametrize(
    ("name", "changes"),
    [("chat-frontend", {"frontend": {}}), ("chat-picker", {"gateway": {"prefixAware": True}})],
)
async def test_why_no_pod_is_made_is_said_in_the_words_of_who_refuses_it(
    name: str, changes: dict[str, Any]
) -> None:
    words = 'pods "x" is forbidden: failed quota: must specify limits.cpu for: picker'
    cluster = cluster_with(**changes)
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster)
    cluster.find(DEPLOYMENT, name)["status"] = {
        "conditions": [
            {
                "type": "Available",
                "status": "False",
                "reason": "MinimumReplicasUnavailable",
                "message": "Deployment does not have minimum availability.",
            },
            {
                "type": "ReplicaFailure",
                "status": "True",
                "reason": "FailedCreate",
                "message": words,
            },
        ]
    }
    await reconciler(cluster).reconcile(KEY)
    told = condition(cluster, "IntegrationsReady")
    assert told["status"] == "False"
    assert words in told["message"]
    assert "minimum availability" not in told["message"]
