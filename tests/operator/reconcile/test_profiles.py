"""An AtomProfile is laid below the specs of those that it is for, and rolls out as a spec does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atom_operator.constants import LABEL_PROFILE
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    ATOM_PROFILE,
    DEPLOYMENT,
    NAMESPACE,
    SERVICE,
    Manifest,
)
from atom_operator.integration_values import Site
from atom_operator.reconcile.reconciler import Reconciler
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    cluster_with,
    condition,
    gpu_node,
    reconciler,
)
from tests.support.operator.cached_cluster import followed
from tests.support.operator.fake_cluster import FakeCluster

_REVISION = "serving.atom.dev/revision"
_OURS = (ATOM_DEPLOYMENT, "chat")
GPU: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-8B"},
    "accelerator": {"type": "amd", "product": "MI300X"},
}


def put_profile(cluster: FakeCluster, name: str = "default", **spec: Any) -> None:
    """Create a profile, or make it another."""
    cluster.objects.pop((ATOM_PROFILE, "", name), None)
    cluster.create(ATOM_PROFILE, {"metadata": {"name": name, "namespace": ""}, "spec": spec})


def label_namespace(cluster: FakeCluster, profile: str) -> None:
    metadata = {"name": "default", "namespace": "", "labels": {LABEL_PROFILE: profile}}
    cluster.create(NAMESPACE, {"metadata": metadata})


def pod_spec(cluster: FakeCluster) -> Manifest:
    spec: Manifest = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]["spec"]
    return spec


def environment(cluster: FakeCluster) -> dict[str, str]:
    (engine,) = pod_spec(cluster)["containers"]
    return {item["name"]: item.get("value") for item in engine["env"]}


def variable(value: str) -> Manifest:
    return {"env": [{"name": "SITE", "value": value}]}


async def test_pods_have_what_the_profile_gives_and_the_message_names_it() -> None:
    cluster = cluster_with(**GPU)
    cluster.nodes = [gpu_node("a")]
    toleration = {"key": "gpus-only", "operator": "Exists"}
    put_profile(
        cluster,
        accelerator={"deviceGroups": [109, 44]},
        engine={"imagePullSecrets": [{"name": "registry"}]},
        proxy={"https": "http://proxy.test:3128"},
        template={"spec": {"tolerations": [toleration]}},
        objects={"service": {"labels": {"cost": "research"}}},
    )
    await reconciler(cluster).reconcile(KEY)
    spec = pod_spec(cluster)
    assert spec["securityContext"]["supplementalGroups"] == [109, 44]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert toleration in spec["tolerations"]
    assert environment(cluster)["https_proxy"] == "http://proxy.test:3128"
    assert cluster.find(SERVICE, "chat")["metadata"]["labels"]["cost"] == "research"
    message = condition(cluster, "Accepted")["message"]
    for field in ("accelerator.deviceGroups", "engine.env[HTTPS_PROXY]", "template.spec.toler"):
        assert field in message
    assert "over AtomProfile default (" in message


async def test_the_spec_wins() -> None:
    engine = {"env": [{"name": "SITE", "value": "own"}]}
    accelerator = {**GPU["accelerator"], "deviceGroups": [7]}
    template = {"spec": {"priorityClassName": "own"}}
    cluster = cluster_with(**{**GPU, "accelerator": accelerator}, engine=engine, template=template)
    put_profile(
        cluster,
        accelerator={"deviceGroups": [109]},
        engine={"env": [{"name": "SITE", "value": "all"}, {"name": "MORE", "value": "all"}]},
        template={"spec": {"priorityClassName": "all", "schedulerName": "all"}},
    )
    await reconciler(cluster).reconcile(KEY)
    spec, found = pod_spec(cluster), environment(cluster)
    assert spec["securityContext"]["supplementalGroups"] == [7]
    assert (found["SITE"], found["MORE"]) == ("own", "all")
    assert (spec["priorityClassName"], spec["schedulerName"]) == ("own", "all")
    message = condition(cluster, "Accepted")["message"]
    assert "engine.env[MORE]" in message
    assert "engine.env[SITE]" not in message


async def test_what_is_for_gpus_is_not_laid_below_a_model_on_the_cpu() -> None:
    cluster = cluster_with()
    put_profile(cluster, accelerator={"deviceGroups": [109]}, engine=variable("all"))
    await reconciler(cluster).reconcile(KEY)
    assert "supplementalGroups" not in pod_spec(cluster)["securityContext"]
    assert environment(cluster)["SITE"] == "all"


async def test_the_spec_names_a_profile_before_its_namespace_and_that_before_the_default() -> None:
    cluster = cluster_with()
    for name in ("default", "team", "own"):
        put_profile(cluster, name, engine=variable(name))
    await reconciler(cluster).reconcile(KEY)
    assert environment(cluster)["SITE"] == "default"
    label_namespace(cluster, "team")
    await reconciler(cluster).reconcile(KEY)
    assert environment(cluster)["SITE"] == "team"
    cluster.change_spec(*_OURS, profile="own")
    await reconciler(cluster).reconcile(KEY)
    assert environment(cluster)["SITE"] == "own"


async def test_the_charts_defaults_are_the_default_until_an_object_of_that_name_exists() -> None:
    cluster, site = cluster_with(), Site(defaults={"engine": variable("chart")})
    await reconciler(cluster, site=site).reconcile(KEY)
    assert environment(cluster)["SITE"] == "chart"
    put_profile(cluster, engine=variable("object"))
    await reconciler(cluster, site=site).reconcile(KEY)
    assert environment(cluster)["SITE"] == "object"


async def test_an_operator_of_single_namespaces_has_the_charts_defaults_and_reads_no_profiles() -> (
    None
):
    cluster, site = cluster_with(), Site(defaults={"engine": variable("chart")})
    put_profile(cluster, engine=variable("object"))
    await _of_one_namespace(reconciler(cluster, site=site)).reconcile(KEY)
    assert environment(cluster)["SITE"] == "chart"
    assert "get AtomProfile" not in cluster.reads


async def test_another_profile_rolls_out_and_the_same_one_writes_nothing() -> None:
    cluster = cluster_with()
    put_profile(cluster, template={"metadata": {"annotations": {"site": "1"}}})
    await _serve(cluster)
    revision = cluster.find(DEPLOYMENT, "chat")["metadata"]["annotations"][_REVISION]
    cluster.writes.clear()
    await reconciler(cluster).reconcile(KEY)
    assert cluster.writes == []
    put_profile(cluster, template={"metadata": {"annotations": {"site": "2"}}})
    await reconciler(cluster).reconcile(KEY)
    assert cluster.find(DEPLOYMENT, "chat")["metadata"]["annotations"][_REVISION] != revision


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        (None, "ProfileNotFound", "AtomProfile site, named by spec.profile, does not exist"),
        ({"engine": {"env": "many"}}, "InvalidProfile", "spec.engine.env"),
        ({"template": {"spec": {"containers": 1}}}, "InvalidProfile", "must be a list"),
        (
            {"template": {"metadata": {"labels": {"serving.atom.dev/deployment": "x"}}}},
            "InvalidProfile",
            "the operator selects pods by it",
        ),
        (
            {"template": {"spec": {"volumes": [{"hostPath": {"path": "/"}}]}}},
            "InvalidSpec",
            "of AtomProfile site: ",
        ),
        (
            {"template": {"spec": {"hostPID": True}}},
            "TemplateForbidden",
            "hostPID is not allowed here",
        ),
    ],
)
async def test_a_profile_that_cannot_be_used_is_told_and_what_serves_is_kept(
    spec: dict[str, Any] | None, reason: str, words: str
) -> None:
    cluster = cluster_with(profile="site")
    put_profile(cluster, "site", template={"metadata": {"annotations": {"site": "1"}}})
    await _serve(cluster)
    before = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]
    del cluster.objects[ATOM_PROFILE, "", "site"]
    if spec is not None:
        put_profile(cluster, "site", **spec)
    cluster.objects.pop((SERVICE, "default", "chat"))
    await reconciler(cluster).reconcile(KEY)
    told = condition(cluster, "Accepted")
    assert (told["status"], told["reason"]) == ("False", reason)
    assert words in told["message"]
    assert cluster.find(DEPLOYMENT, "chat")["spec"]["template"] == before
    assert cluster.find(SERVICE, "chat")["spec"]["selector"]


async def test_a_profile_of_what_only_its_images_can_do() -> None:
    parallel = {"tensor": 16, "nodes": 2}
    spec = {**GPU, "parallelism": parallel, "model": {"source": "hf://Qwen/Qwen3-235B-A22B"}}
    cluster, site = cluster_with(**spec), Site(engine_multi_node=False)
    await reconciler(cluster, site=site).reconcile(KEY)
    assert condition(cluster, "Accepted")["reason"] == "UnsupportedByEngine"
    abilities = {"image": "registry.test/atom:*", "multiNode": True}
    put_profile(cluster, images=[{"image": "elsewhere/*"}, abilities])
    await reconciler(cluster, site=site).reconcile(KEY)
    assert "multiNode" not in condition(cluster, "Accepted")["message"]


async def test_a_model_of_the_profiles_catalogue_is_planned() -> None:
    source = "path:///models/ours"
    cluster = cluster_with(model={"source": source})
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "CapacityFits")["status"] == "Unknown"
    config = cluster_with().find(*_OURS)["spec"]["model"]["config"]
    put_profile(cluster, models=[{"source": source, "config": config}])
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "CapacityFits")["status"] == "True"
    assert "model.config" in condition(cluster, "Accepted")["message"]


async def test_only_the_profiles_own_account_passes_where_specs_may_name_none() -> None:
    cluster = cluster_with()
    put_profile(cluster, serviceAccountName="cloud")
    await reconciler(cluster).reconcile(KEY)
    assert pod_spec(cluster)["serviceAccountName"] == "cloud"
    cluster.change_spec(*_OURS, serviceAccountName="another")
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "Accepted")["reason"] == "TemplateForbidden"


async def test_profiles_are_read_from_the_informers_and_their_changes_wake_all() -> None:
    cluster = cluster_with()
    put_profile(cluster, "team", engine=variable("1"))
    label_namespace(cluster, "team")
    async with followed(cluster) as seen:
        cluster.reads.clear()
        await reconciler(seen.port).reconcile(KEY)
        assert environment(cluster)["SITE"] == "1"
        assert "get AtomProfile" not in cluster.reads
        seen.announced.clear()
        put_profile(cluster, "team", engine=variable("2"))
        await seen.tell()
        assert "team" in seen.announced
        await reconciler(seen.port).reconcile(KEY)
        assert environment(cluster)["SITE"] == "2"
        cluster.find(NAMESPACE, "default", "")["metadata"]["labels"].clear()
        await seen.tell()
        await reconciler(seen.port).reconcile(KEY)
        assert "SITE" not in environment(cluster)


async def _serve(cluster: FakeCluster) -> None:
    for _ in range(4):
        await reconciler(cluster).reconcile(KEY)
        finish_rollout(cluster)


def _of_one_namespace(whole: Reconciler) -> Reconciler:
    settings = replace(whole.decider.settings, namespaces=("default",))
    return replace(whole, decider=replace(whole.decider, settings=settings))
