"""The Jobs that prepare a model beside a cluster's controllers.

What keeps them from their work is told in the words of the one who refused it, what is put right
arrives, and what is fetched stays fetched.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
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
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.kinds import LIMIT_RANGE, RESOURCE_QUOTA, SECRET
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.operator.builders_operator import atom_deployment, condition, gpu_node

HUB: dict[str, Any] = {
    "model": {
        "source": "hf://Qwen/Qwen3-0.6B",
        "revision": "v1",
        "tokenSecretRef": {"name": "hub"},
    },
    "engine": {"image": "registry.test/atom:1"},
    "cache": {"weights": {"claim": "models"}},
    "accelerator": {"type": "cpu", "memory": "16Gi"},
    # What only engines should have to do with.
    "template": {"metadata": {"labels": {"team": "search"}}},
}


class World:
    """One AtomDeployment whose weights a Job fetches into a claim that is there."""

    def __init__(self, **changes: Any) -> None:
        node = gpu_node("a")
        node["metadata"]["labels"]["disk"] = "ssd"
        plenty = {"cpu": "64", "memory": "1Ti", "pods": "110", "ephemeral-storage": "1Ti"}
        node["status"]["allocatable"] |= plenty
        self.cluster = InMemoryCluster(nodes=[node])
        self.cluster.kubelets.strict_secrets = True
        state = self.cluster.state
        claim = {"metadata": {"name": "models"}, "spec": {"accessModes": ["ReadWriteMany"]}}
        state.create(VOLUME_CLAIM, claim)
        state.create(SECRET, {"metadata": {"name": "hub"}, "data": {"token": "given"}})
        self.cluster.api.create(ATOM_DEPLOYMENT, atom_deployment(**{**HUB, **changes}))
        # A site that allows templates to name Secrets and to tolerate every taint.
        self.operator = OperatorClient(self.cluster, site=Site(template_forbidden=frozenset()))

    def change(self, **changes: Any) -> None:
        spec = self.cluster.api.find(ATOM_DEPLOYMENT, "chat")["spec"]
        merged = {name: {**spec.get(name, {}), **value} for name, value in changes.items()}
        self.cluster.api.change_spec(ATOM_DEPLOYMENT, "chat", **merged)

    def told(self, kind: str) -> dict[str, Any]:
        return condition(self.cluster.api, kind)

    @property
    def job(self) -> Manifest:
        (name,) = [name for name in self.cluster.api.names(JOB) if "weights" in name]
        return self.cluster.api.find(JOB, name)

    @property
    def job_pods(self) -> list[Manifest]:
        labelled = "serving.atom.dev/job-for"
        pods = self.cluster.state.all(POD)
        return [pod for pod in pods if labelled in pod["metadata"]["labels"]]

    def events(self) -> str:
        """What the operator's own Events say."""
        events = [item for key, item in self.cluster.api.objects.items() if key[0] == EVENT]
        about = [e for e in events if e["involvedObject"]["kind"] == "AtomDeployment"]
        return " ".join(event["message"] for event in about)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.operator.close()


def test_weights_are_fetched_and_the_model_serves(world: World) -> None:
    world.cluster.advance(300)
    assert world.told("Ready")["status"] == "True"
    assert world.job["status"]["conditions"][0]["type"] == "Complete"


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "image": (
        {"engine": {"image": "registry.test/atom:typo"}},
        {"engine": {"image": "registry.test/atom:1"}},
        "ImagePullBackOff",
    ),
    "secret's name": (
        {"model": {**HUB["model"], "tokenSecretRef": {"name": "nope"}}},
        {"model": {"tokenSecretRef": {"name": "hub"}}},
        'CreateContainerConfigError: secret "nope" not found',
    ),
    "variable from a secret": (
        {
            "engine": {
                "image": "registry.test/atom:1",
                "env": [
                    {
                        "name": "HTTPS_PROXY",
                        "valueFrom": {"secretKeyRef": {"name": "proxy", "key": "url"}},
                    }
                ],
            }
        },
        {"engine": {"env": [{"name": "HTTPS_PROXY", "value": "http://proxy.test"}]}},
        'CreateContainerConfigError: secret "proxy" not found',
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_job_that_hangs_says_why_and_is_replaced_when_that_is_put_right(what: str) -> None:
    wrong, right, words = WRONG[what]
    world = World(**wrong)
    world.cluster.advance(120)
    degraded = world.told("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "PodFailing")
    assert words in degraded["message"]
    assert words in world.told("Ready")["message"]
    assert words in world.events()
    hanging = world.job["metadata"]["uid"]
    world.cluster.advance(3600)
    world.change(**right)
    world.cluster.advance(300)
    assert world.job["metadata"]["uid"] != hanging
    assert world.told("Ready")["status"] == "True", world.told("Ready")
    assert world.told("Degraded")["status"] == "False"
    world.operator.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"spec": {"nodeSelector": {"disk": "nope"}}},
        {"spec": {"containers": [{"name": "engine", "resources": {"requests": {"cpu": "1"}}}],
                  "nodeSelector": {"rack": "r7"}}},
    ],
)  # fmt: skip
def test_a_job_without_a_node_is_told_and_placed_by_the_corrected_spec(wrong: Any) -> None:
    world = World(template=wrong)
    world.cluster.advance(120)
    scheduled = world.told("Scheduled")
    assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
    assert "node" in scheduled["message"]
    assert "Job atom-weights" in scheduled["message"]
    world.change(template={"spec": {"nodeSelector": {"disk": "ssd"}}})
    world.cluster.advance(300)
    assert world.told("Ready")["status"] == "True", world.told("Ready")
    world.operator.close()


def _quota(world: World, **hard: str) -> None:
    spec = {"hard": {name.replace("_", "."): value for name, value in hard.items()}}
    world.cluster.state.create(RESOURCE_QUOTA, {"metadata": {"name": "team"}, "spec": spec})


def _small_quota(world: World) -> None:
    _quota(world, limits_memory="1Gi", limits_cpu="100")


def _limit_range(world: World) -> None:
    limits = [{"type": "Container", "max": {"cpu": "2"}}]
    world.cluster.state.create(
        LIMIT_RANGE, {"metadata": {"name": "limits"}, "spec": {"limits": limits}}
    )


def _policy(world: World) -> None:
    def wants_owner(kind: Any, item: Manifest) -> str | None:
        labels = item["metadata"].get("labels") or {}
        is_job = kind == POD and "job-name" in labels
        return "label owner is required" if is_job and "owner" not in labels else None

    world.cluster.state.policies.append(wants_owner)


REFUSALS = {
    "quota": (_small_quota, "exceeded quota: team", {"resources": {"limits": {"memory": "256Mi"}}}),
    "limit range": (_limit_range, "maximum cpu usage", {"resources": {"limits": {"cpu": "1"}}}),
    "policy": (_policy, "label owner is required", {}),
}


@pytest.mark.parametrize("who", REFUSALS)
def test_pods_of_a_job_that_are_refused_are_told_and_the_jobs_can_be_made_to_fit(who: str) -> None:
    refuse, words, container = REFUSALS[who]
    world = World()
    refuse(world)
    world.cluster.advance(120)
    degraded = world.told("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "PodsRefused"), degraded
    assert words in degraded["message"]
    assert words in world.events()
    overlay = {
        "metadata": {"labels": {"owner": "search"}},
        "spec": {"containers": [{"name": "prepare", **container}]},
    }
    world.change(jobs={"template": overlay})
    world.cluster.advance(300)
    assert world.job["status"]["conditions"][0]["type"] == "Complete", world.told("Degraded")
    world.operator.close()


def test_limits_let_jobs_into_a_namespace_whose_quota_wants_them() -> None:
    engine = {"name": "engine", "resources": {"limits": {"cpu": "8"}}}
    world = World(template={"spec": {"containers": [engine]}})
    _quota(world, limits_memory="100Gi", limits_cpu="100")
    world.cluster.advance(300)
    assert world.told("Ready")["status"] == "True", world.told("Degraded")
    world.operator.close()


def test_a_job_that_the_api_server_refuses_is_told_and_loses_nothing(world: World) -> None:
    _quota(world, **{"count/jobs_batch": "0"})
    world.cluster.advance(120)
    degraded = world.told("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ApplyRefused"), degraded
    assert "exceeded quota: team" in degraded["message"]
    (quota,) = world.cluster.state.all(RESOURCE_QUOTA)
    world.cluster.state.remove(RESOURCE_QUOTA, quota)
    world.cluster.advance(300)
    assert world.told("Ready")["status"] == "True"


CHANGES: dict[str, dict[str, Any]] = {
    "image": {"engine": {"image": "registry.test/atom:2"}},
    "env": {"engine": {"env": [{"name": "HF_ENDPOINT", "value": "http://mirror.test"}]}},
    "label": {"template": {"metadata": {"labels": {"team": "ads"}}}},
    "pull secret": {"template": {"spec": {"imagePullSecrets": [{"name": "registry"}]}}},
    "node": {"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}},
    "toleration": {"template": {"spec": {"tolerations": [{"operator": "Exists"}]}}},
    "resources": {
        "jobs": {
            "template": {
                "spec": {"containers": [{"name": "prepare", "resources": {"limits": {"cpu": "1"}}}]}
            }
        }
    },
    "deadline": {"jobs": {"activeDeadlineSeconds": 3600}},
    "security": {"template": {"spec": {"securityContext": {"runAsUser": 1000}}}},
    "certificates": {
        "template": {
            "spec": {
                "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
                "containers": [
                    {
                        "name": "engine",
                        "env": [{"name": "SSL_CERT_FILE", "value": "/ca/ca.pem"}],
                        "volumeMounts": [{"name": "ca", "mountPath": "/ca"}],
                    }
                ],
            }
        }
    },
}


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_a_job_is_made_from_changes_one_that_has_not_ended(
    world: World, what: str
) -> None:
    world.cluster.advance(10)
    before = copy.deepcopy(world.job)
    world.change(**CHANGES[what])
    world.cluster.advance(10)
    assert world.job["metadata"]["uid"] != before["metadata"]["uid"]
    assert world.job["spec"] != before["spec"]
    world.cluster.advance(300)
    assert world.told("Ready")["status"] == "True", world.told("Ready")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("what", CHANGES)
def test_what_is_fetched_is_not_fetched_again(world: World, what: str) -> None:
    world.cluster.advance(300)
    done = copy.deepcopy(world.job)
    world.change(**CHANGES[what])
    world.cluster.advance(600)
    assert world.job["metadata"]["uid"] == done["metadata"]["uid"]
    assert world.told("Ready")["status"] == "True", world.told("Ready")


def test_a_job_has_what_the_overlay_says_of_engines(world: World) -> None:
    for change in CHANGES.values():
        world.change(**copy.deepcopy(change))
    world.change(template=CHANGES["certificates"]["template"])
    world.cluster.advance(10)
    template = world.job["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert {"name": "SSL_CERT_FILE", "value": "/ca/ca.pem"} in container["env"]
    assert {"name": "ca", "mountPath": "/ca"} in container["volumeMounts"]
    assert "ca" in [volume["name"] for volume in template["spec"]["volumes"]]
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "4Gi"}
    assert world.job["spec"]["activeDeadlineSeconds"] == 3600
    assert "serving.atom.dev/deployment" not in template["metadata"]["labels"]


def test_two_that_ask_otherwise_for_the_same_weights_share_one_job() -> None:
    world = World()
    other = atom_deployment(**{**HUB, "engine": {"image": "registry.test/atom:2"}})
    other["metadata"] = {**other["metadata"], "name": "talk", "uid": "uid-of-talk"}
    world.cluster.kubelets.job_seconds = 1200.0
    world.cluster.api.create(ATOM_DEPLOYMENT, other)
    world.cluster.advance(5)
    uid = world.job["metadata"]["uid"]
    world.cluster.advance(1100)
    assert world.job["metadata"]["uid"] == uid
    world.cluster.advance(900)
    assert len([name for name in world.cluster.api.names(JOB) if "weights" in name]) == 1
    assert world.told("Ready")["status"] == "True"
    assert world.cluster.api.names(DEPLOYMENT) == ["chat", "talk"]
    world.operator.close()


def test_another_may_take_over_a_job_that_hangs() -> None:
    world = World(engine={"image": "registry.test/atom:typo"})
    world.cluster.advance(60)
    other = atom_deployment(**HUB)
    other["metadata"] = {**other["metadata"], "name": "talk", "uid": "uid-of-talk"}
    world.cluster.api.create(ATOM_DEPLOYMENT, other)
    world.cluster.advance(1500)
    assert world.job["status"]["conditions"][0]["type"] == "Complete"
    world.operator.close()
