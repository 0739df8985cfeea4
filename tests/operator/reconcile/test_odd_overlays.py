"""Every overlay of a pod template has one judge: a value in it is rendered, or condition Accepted
has a problem with its path; it is never an exception."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest

from atom_operator.children.workload import pod_template
from atom_operator.domain import ATOM_DEPLOYMENT, ATOM_PROFILE
from atom_operator.integration_values import Site, TemplateFeature
from atom_operator.webhook.reviewer import faults_of
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    atom_deployment,
    cluster_with,
    condition,
    plan,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.overlays import odd_directives, odd_fields, odd_values

Overlay = dict[str, Any]
WEIGHTS: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-0.6B"},
    "accelerator": {"type": "cpu", "memory": "16Gi"},
    "cache": {"weights": {"claim": "models"}},
    "gateway": {"httpRoute": {"parentRefs": [{"name": "gate"}]}},
    "frontend": {},
}
# Fields of a spec that hold an overlay, and where its problems are said to be.
PLACES: dict[str, tuple[str, Callable[[Overlay], dict[str, Any]]]] = {
    "engines": ("spec.template", lambda overlay: {"template": overlay}),
    "jobs": ("spec.jobs.template", lambda overlay: {"jobs": {"template": overlay}}),
    "canary": (
        "spec.canary",
        lambda overlay: {"canary": {"weight": 10, "change": {"template": overlay}}},
    ),
    "canary over engines": (
        "spec.",
        lambda overlay: {
            "template": overlay,
            "canary": {"weight": 10, "change": {"template": overlay}},
        },
    ),
}
SITES = (Site(), Site(template_forbidden=frozenset()))


def rendered() -> Overlay:
    made = pod_template(plan(**WEIGHTS))
    made["spec"]["initContainers"] = [{"name": "first", "image": "a", "volumeMounts": []}]
    return made


def overlays() -> list[tuple[str, Overlay]]:
    of_jobs = ((name.replace("engine", "prepare"), _renamed(odd)) for name, odd in odd_fields())
    found = chain(odd_values(rendered()), odd_fields(), of_jobs, odd_directives())
    return list(dict(found).items())


def _renamed(node: Any) -> Any:
    if isinstance(node, dict):
        return {name: _renamed(value) for name, value in node.items()}
    if isinstance(node, list):
        return [_renamed(item) for item in node]
    return "prepare" if node == "engine" else node


def chosen(count: int, seed: int) -> list[tuple[str, Overlay]]:
    return random.Random(seed).sample(overlays(), count)


async def reaches_the_status(cluster: FakeCluster, name: str, site: Site) -> None:
    """A pass ends, and the status speaks of the newest spec."""
    await reconciler(cluster, site=site).reconcile(KEY)
    stored = cluster.find(ATOM_DEPLOYMENT, "chat")
    assert stored["status"]["observedGeneration"] == stored["metadata"]["generation"], name
    accepted = condition(cluster, "Accepted")
    assert accepted["observedGeneration"] == stored["metadata"]["generation"], name
    assert accepted["message"], name


async def tries(kind: str, name: str, overlay: Overlay, site: Site) -> None:
    place, changes = PLACES[kind]
    cluster = cluster_with(**WEIGHTS)
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", **changes(overlay))
    await reaches_the_status(cluster, f"{kind}: {name}", site)
    faults = faults_of(KEY, atom_deployment(**WEIGHTS, **changes(overlay)))
    assert all(fault.field.startswith(place) for fault in faults), (kind, name, faults)
    if faults:
        assert condition(cluster, "Accepted")["status"] == "False", (kind, name)


async def tries_profile(name: str, overlay: Overlay, site: Site) -> None:
    cluster = cluster_with(**WEIGHTS)
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster)
    cluster.create(ATOM_PROFILE, {"metadata": {"name": "default", "namespace": ""}, "spec": {}})
    cluster.objects[ATOM_PROFILE, "", "default"]["spec"]["template"] = overlay
    await reaches_the_status(cluster, f"profile: {name}", site)
    accepted = condition(cluster, "Accepted")
    if accepted["status"] == "False":
        assert "AtomProfile default" in accepted["message"], name


@pytest.mark.sampled(3)
@pytest.mark.parametrize("site", SITES, ids=["strict", "lenient"])
@pytest.mark.parametrize("kind", PLACES)
async def test_some_odd_overlays_reach_the_status(kind: str, site: Site) -> None:
    for name, overlay in chosen(70, 16):
        await tries(kind, name, overlay, site)


@pytest.mark.parametrize("site", SITES, ids=["strict", "lenient"])
async def test_some_odd_overlays_of_profiles_reach_the_status(site: Site) -> None:
    for name, overlay in chosen(120, 17):
        await tries_profile(name, overlay, site)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLACES)
async def test_every_odd_overlay_reaches_the_status(kind: str) -> None:
    for name, overlay in overlays():
        await tries(kind, name, overlay, SITES[1])


@pytest.mark.slow
async def test_every_odd_overlay_of_profiles_reaches_the_status() -> None:
    for name, overlay in overlays():
        await tries_profile(name, overlay, SITES[1])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", PLACES)
def test_every_odd_overlay_is_reviewed(kind: str) -> None:
    """What the webhook does with each, which looks at no cluster."""
    place, changes = PLACES[kind]
    for name, overlay in chosen(1000, 18):
        faults = faults_of(KEY, atom_deployment(**WEIGHTS, **changes(overlay)))
        assert all(fault.field.startswith(place) for fault in faults), (name, faults)


async def test_the_overlay_of_jobs_says_its_field() -> None:
    for overlay, words in (
        ({"spec": {"initContainers": "x"}}, "spec.initContainers: must be a list, got 'x'"),
        ({"spec": {"volumes": [{"emptyDir": {}}]}}, "spec.volumes[0]: lacks name"),
        ({"metadata": {"labels": {"a": 7}}}, "metadata.labels[a]: must be a string"),
        ({"spec": None}, "spec.containers: container prepare does the work"),
        ({"status": {}}, "status: unknown; a pod template has metadata and spec"),
    ):
        cluster = cluster_with(jobs={"template": overlay})
        await reconciler(cluster).reconcile(KEY)
        accepted = condition(cluster, "Accepted")
        assert (accepted["status"], accepted["reason"]) == ("False", "InvalidSpec")
        message = accepted["message"].replace("spec.jobs.template: ", "spec.jobs.template.")
        assert f"spec.jobs.template.{words}" in message
        assert cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["observedGeneration"] == 1


async def test_anothers_odd_canary_is_no_matter_of_the_weights_job() -> None:
    """Whoever shares a claim is asked what they use of it, in whatever state their spec is."""
    odd = [{"name": ["x"]}, {"name": {"a": 1}}]
    cluster = cluster_with(**WEIGHTS)
    template = {"spec": {"volumes": odd}}
    canary = {"weight": 1, "change": {"template": template}}
    other = atom_deployment(**WEIGHTS)
    other["metadata"] |= {"name": "other", "uid": "other"}
    cluster.create(ATOM_DEPLOYMENT, other)["spec"] |= {"template": template, "canary": canary}
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "Accepted")["status"] == "True"


def test_sites_differ_in_all_that_a_template_may_have() -> None:
    assert SITES[0].template_forbidden == frozenset(TemplateFeature)
