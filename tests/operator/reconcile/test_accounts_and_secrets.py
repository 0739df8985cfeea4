"""Who pods run as, with which registry secrets, keys and disk, and what their objects carry."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.children.beside_engines.job import weights_job
from atom_operator.children.render import render
from atom_operator.children.workload import pod_template
from atom_operator.domain import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    POD,
    SERVICE,
    SERVICE_ACCOUNT,
    ChildKey,
    Kind,
)
from atom_operator.integration_values import FORBIDDEN_BY_DEFAULT, Site, TemplateFeature
from atom_operator.settings import OperatorSettings, SettingsError
from tests.support.operator.builders_operator import (
    KEY,
    cluster_with,
    condition,
    plan,
    pod,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster

ALLOWED = Site(template_forbidden=FORBIDDEN_BY_DEFAULT - {TemplateFeature.SERVICE_ACCOUNT})
HUB = {
    "model": {"source": "hf://Qwen/Qwen3-8B"},
    "accelerator": {"type": "amd", "product": "MI300X"},
}


def namespace_with(*secrets: str) -> dict[str, Any]:
    """The ServiceAccount that every namespace has."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "default", "namespace": "default"},
        "imagePullSecrets": [{"name": name} for name in secrets],
    }


def secrets_of(cluster: FakeCluster) -> list[str]:
    account = cluster.find(SERVICE_ACCOUNT, "chat")
    return [item["name"] for item in account.get("imagePullSecrets", [])]


async def test_the_registry_secret_of_a_namespace_is_the_engines_too() -> None:
    cluster = cluster_with()
    cluster.create(SERVICE_ACCOUNT, namespace_with("registry"))
    site = Site(pull_secrets=("of-the-site", "registry"))
    await reconciler(cluster, site=site).reconcile(KEY)
    assert secrets_of(cluster) == ["of-the-site", "registry"]


async def test_a_secret_that_came_later_is_taken_once_an_image_cannot_be_pulled() -> None:
    cluster = cluster_with()
    account = cluster.create(SERVICE_ACCOUNT, namespace_with())
    operator = reconciler(cluster)
    await operator.reconcile(KEY)
    await operator.reconcile(KEY)
    reads = cluster.reads.count("get ServiceAccount")
    await operator.reconcile(KEY)
    assert cluster.reads.count("get ServiceAccount") == reads, "nothing depends on it"
    cluster.find(SERVICE_ACCOUNT, "default")["imagePullSecrets"] = [{"name": "registry"}]
    waiting = {"name": "engine", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    failing = pod(cluster, "chat-1", ready=False, containerStatuses=[waiting])
    cluster.objects[POD, "default", "chat-1"] = failing
    await operator.reconcile(KEY)
    assert secrets_of(cluster) == ["registry"]
    assert account["metadata"]["name"] == "default"


async def test_an_account_of_ones_own_needs_the_sites_permission() -> None:
    cluster = cluster_with(serviceAccountName="cloud")
    await reconciler(cluster).reconcile(KEY)
    accepted = condition(cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "TemplateForbidden")
    assert accepted["message"].startswith("spec.serviceAccountName: ")
    await reconciler(cluster, site=ALLOWED).reconcile(KEY)
    pods = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]["spec"]
    assert pods["serviceAccountName"] == "cloud"
    assert cluster.names(SERVICE_ACCOUNT) == []


def test_jobs_run_as_the_same_account_with_the_same_secrets() -> None:
    asked = {
        **HUB,
        "cache": {"weights": {"claim": "w"}},
        "serviceAccountName": "cloud",
        "engine": {"imagePullSecrets": [{"name": "mine"}]},
    }
    job = weights_job(plan(site=ALLOWED, **asked))
    assert job is not None
    spec = job.manifest["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == "cloud"
    assert spec["imagePullSecrets"] == [{"name": "mine"}]


def test_an_api_key_is_mounted_as_a_folder_that_the_kubelet_renews() -> None:
    asked = plan(engine={"apiKeySecretRef": {"name": "keys", "key": "clients"}})
    spec = pod_template(asked)["spec"]
    (engine,) = spec["containers"]
    (mount,) = [item for item in engine["volumeMounts"] if item["name"] == "api-key"]
    assert "subPath" not in mount
    place = engine["args"].index("--api-key-file")
    assert engine["args"][place + 1] == f"{mount['mountPath']}/key"
    (volume,) = [item for item in spec["volumes"] if item["name"] == "api-key"]
    assert volume["secret"] == {
        "secretName": "keys",
        "items": [{"key": "clients", "path": "key"}],
    }


@pytest.mark.parametrize("claimed", [{}, {"cache": {"weights": {"claim": "w"}}}])
def test_the_token_for_adapters_is_a_file_that_the_kubelet_renews(claimed: dict[str, Any]) -> None:
    model = {**HUB["model"], "tokenSecretRef": {"name": "hub", "key": "reader"}}
    asked = {**HUB, **claimed, "model": model, "engine": {"lora": {}}}
    spec = pod_template(plan(**asked))["spec"]
    (engine,) = spec["containers"]
    (mount,) = [item for item in engine["volumeMounts"] if item["name"] == "hub-token"]
    (volume,) = [item for item in spec["volumes"] if item["name"] == "hub-token"]
    assert "subPath" not in mount
    assert volume["secret"] == {"secretName": "hub", "items": [{"key": "reader", "path": "token"}]}
    env = {item["name"]: item for item in engine["env"]}
    assert env["HF_TOKEN_PATH"]["value"] == f"{mount['mountPath']}/token"
    assert "HF_TOKEN" not in env, "a variable would come before the file"


def test_without_adapters_a_token_is_read_when_the_container_starts() -> None:
    model = {**HUB["model"], "tokenSecretRef": {"name": "hub", "key": "reader"}}
    spec = pod_template(plan(**{**HUB, "model": model}))["spec"]
    (engine,) = spec["containers"]
    env = {item["name"]: item for item in engine["env"]}
    assert env["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "reader"}
    assert "hub-token" not in {item["name"] for item in spec["volumes"]}


async def test_an_api_key_is_said_once() -> None:
    engine = {"apiKeySecretRef": {"name": "keys"}, "extraArgs": ["--api-key-file=/x"]}
    cluster = cluster_with(engine=engine)
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "Accepted")["reason"] == "ReservedArgument"


OBJECTS: dict[str, tuple[str, Kind]] = {
    "service": ("Service", SERVICE),
    "serviceAccount": ("ServiceAccount", SERVICE_ACCOUNT),
    "podDisruptionBudget": ("PodDisruptionBudget", DISRUPTION_BUDGET),
}


@pytest.mark.parametrize("field", OBJECTS)
def test_objects_carry_the_metadata_that_is_asked_for(field: str) -> None:
    name, kind = OBJECTS[field]
    own = {"labels": {"tier": "gold"}, "annotations": {"example.org/role": "reader"}}
    asked = {"labels": {"cost-centre": "7"}, "annotations": {"a": "b"}, field: own}
    children = render(plan(replicas=2, objects=asked))
    for child, manifest in children.items():
        metadata = manifest["metadata"]
        assert metadata["labels"]["cost-centre"] == "7", child
        assert metadata["annotations"]["a"] == "b", child
        assert ("tier" in metadata["labels"]) == (child.kind == kind), child
    metadata = children[ChildKey(kind, "chat")]["metadata"]
    assert metadata["annotations"]["example.org/role"] == "reader", name
    template = children[ChildKey(DEPLOYMENT, "chat")]["spec"]["template"]
    assert "cost-centre" not in template["metadata"]["labels"], "that would restart pods"


def test_jobs_and_their_pods_carry_it_too() -> None:
    words = {"labels": {"team": "a"}, "annotations": {"sidecar.istio.io/inject": "false"}}
    asked = plan(**HUB, cache={"weights": {"claim": "w"}}, objects={"job": words})
    job = weights_job(asked)
    assert job is not None
    for metadata in (job.manifest["metadata"], job.manifest["spec"]["template"]["metadata"]):
        assert metadata["labels"]["team"] == "a"
        assert metadata["annotations"]["sidecar.istio.io/inject"] == "false"
    assert job.digest == weights_job(plan(**HUB, cache={"weights": {"claim": "w"}})).digest  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (
            {"labels": {"app.kubernetes.io/name": "x"}},
            "spec.objects.labels[app.kubernetes.io/name]",
        ),
        ({"annotations": {"serving.atom.dev/revision": "x"}}, "spec.objects.annotations["),
        ({"service": {"labels": {"a b": "x"}}}, "spec.objects.service.labels[a b]"),
        ({"labels": {"a": "x y"}}, "spec.objects.labels[a]"),
        ({"labels": {"a//b": "x"}}, "spec.objects.labels[a//b]"),
        ({"labels": {"": "x"}}, "spec.objects.labels[]"),
        ({"job": {"annotations": {"-x": "any text is fine"}}}, "spec.objects.job.annotations[-x]"),
    ],
)
async def test_words_that_no_object_can_carry_are_refused(
    words: dict[str, Any], field: str
) -> None:
    cluster = cluster_with(objects=words)
    await reconciler(cluster).reconcile(KEY)
    accepted = condition(cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidSpec")
    assert accepted["message"].startswith(field)


def disk(**changes: Any) -> str | None:
    (engine,) = pod_template(plan(**changes))["spec"]["containers"]
    found = engine["resources"]["requests"].get("ephemeral-storage")
    return None if found is None else str(found)


def overlaid(**pod_spec: Any) -> dict[str, Any]:
    return {**HUB, "template": {"spec": pod_spec}}


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        (HUB, "25Gi"),  # 16.4 GB of weights and a tenth, and what is compiled
        ({**HUB, "cache": {"weights": {"claim": "w"}}}, "8Gi"),
        ({}, "1Gi"),  # in the image, on a CPU
        ({**HUB, "cache": {"ephemeralStorage": "300Gi"}}, "300Gi"),
        (overlaid(volumes=[{"name": "cache", "persistentVolumeClaim": {"claimName": "x"}}]), None),
        (overlaid(volumes=[{"name": "cache", "emptyDir": {"medium": "Memory"}}]), None),
        (
            overlaid(
                containers=[
                    {"name": "engine", "resources": {"limits": {"ephemeral-storage": "9Gi"}}}
                ]
            ),
            None,
        ),
    ],
)
def test_pods_ask_for_the_disk_that_they_fill(changes: dict[str, Any], asked: str | None) -> None:
    assert disk(**changes) == asked


def test_a_cluster_that_gives_user_ids_gets_pods_without() -> None:
    context = pod_template(plan(site=Site(user_id=None)))["spec"]["securityContext"]
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(context)
    assert context["runAsNonRoot"] is True


def test_who_pods_run_as_is_a_setting() -> None:
    assert OperatorSettings.from_env({}).site.user_id == 65532
    assert OperatorSettings.from_env({"ATOM_OPERATOR_ENGINE_USER_ID": ""}).site.user_id is None
    assert OperatorSettings.from_env({"ATOM_OPERATOR_ENGINE_USER_ID": "7"}).site.user_id == 7
    with pytest.raises(SettingsError, match="ENGINE_USER_ID"):
        OperatorSettings.from_env({"ATOM_OPERATOR_ENGINE_USER_ID": "0"})
    secrets = {"ATOM_OPERATOR_ENGINE_PULL_SECRETS": "a, b"}
    assert OperatorSettings.from_env(secrets).site.pull_secrets == ("a", "b")
