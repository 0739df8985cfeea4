"""An AtomProfile under admission is judged by itself and by those that take it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atom_operator.constants import LABEL_PROFILE
from atom_operator.domain import ATOM_DEPLOYMENT, ATOM_PROFILE, NAMESPACE, Manifest
from atom_operator.reconcile.profiles.find_profile import with_profile
from atom_operator.settings import OperatorSettings
from atom_operator.webhook.admission_review import Verdict, parse_review
from atom_operator.webhook.reviewer import Reviewer
from tests.support.operator.builders_admission import review_body
from tests.support.operator.builders_operator import IMAGES, atom_deployment, reconciler, spec
from tests.support.operator.fake_cluster import FakeCluster

AMD: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-8B"},
    "accelerator": {"type": "amd", "product": "MI300X"},
}
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "an indent too much": ({"engine": {"engine": {}}}, "spec.engine"),
    "another type": ({"template": "x"}, "spec.template"),
    "no template": ({"template": {"spec": {"containers": "x"}}}, "spec.template.spec.containers"),
    "a right of the node": ({"template": {"spec": {"hostNetwork": True}}}, "hostNetwork"),
    "a volume of the node": (
        {"template": {"spec": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}}},
        "volumes",
    ),
}


def profile(name: str, said: dict[str, Any]) -> Manifest:
    return {"metadata": {"name": name, "uid": "u"}, "spec": said}


async def review(
    cluster: FakeCluster, said: dict[str, Any], *, name: str = "site", old: Any = None
) -> Verdict:
    before = profile(name, old) if old is not None else None
    body = review_body(profile(name, said), before)
    body["request"]["kind"] = {"kind": "AtomProfile"}
    decider = reconciler(cluster).decider
    verdict = await Reviewer(cluster, decider, answer_seconds=60).review(parse_review(body))
    assert not cluster.writes
    return verdict


def users(count: int, **changes: Any) -> FakeCluster:
    cluster = FakeCluster()
    for number in range(count):
        asked = {**AMD, "profile": "site", **changes}
        cluster.create(ATOM_DEPLOYMENT, atom_deployment(f"m{number}", **asked))
    cluster.writes.clear()
    return cluster


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_nobody_could_use_is_refused_by_the_profiles_own_path(fault: str) -> None:
    said, path = FAULTS[fault]
    found = await review(users(1), said)
    assert found.refusal is not None
    assert "AtomProfile site" in found.refusal
    assert path in found.refusal
    # Stored before the webhook was there, it may be changed elsewhere all the same.
    assert (await review(users(1), {**said, "proxy": {"http": "x:1"}}, old=said)).refusal is None


async def test_a_good_profile_passes_without_a_word() -> None:
    said = {"template": {"metadata": {"labels": {"team": "x"}}}, "proxy": {"http": "http://p:1"}}
    assert await review(users(3), said) == Verdict()


@pytest.mark.parametrize("by", ["name", "label", "default"])
async def test_those_that_it_would_break_are_named(by: str) -> None:
    """By a shape that this engine does not run."""
    cluster = users(7, **({} if by == "name" else {"profile": None}))
    for key in cluster.objects:
        if by != "name":
            cluster.objects[key]["spec"].pop("profile")
    name = "default" if by == "default" else "site"
    if by == "label":
        metadata = {"name": "default", "namespace": "", "labels": {LABEL_PROFILE: "site"}}
        cluster.create(NAMESPACE, {"metadata": metadata})
    shape = {"architectures": ["NobodyKnows"], "model_type": "x"}
    said = {"models": [{"source": AMD["model"]["source"], "config": shape}]}
    found = await review(cluster, said, name=name)
    words = " ".join(found.warnings)
    assert found.refusal is None
    assert "7 AtomDeployments refused" in words
    assert "default/m0: spec.model" in words
    assert "(and 2 more)" in words
    assert await review(cluster, said, name=name, old=said) == Verdict()
    assert await review(cluster, said, name="another") == Verdict()


async def test_a_namespace_that_is_not_named_may_not_take_it() -> None:
    cluster = FakeCluster()
    said = {"namespaces": ["team-a", "lab-*"], "proxy": {"http": "http://p:1"}}
    for name in ("site", "default"):
        cluster.create(ATOM_PROFILE, {"metadata": {"name": name, "namespace": ""}, "spec": said})
    settings = OperatorSettings(engine_images=IMAGES)
    asked = spec(profile="site")
    for namespace, taken in (("team-a", True), ("lab-7", True), ("team-b", False)):
        found = await with_profile(cluster, namespace, asked, settings)
        assert isinstance(found, tuple) is not taken
        laid = await with_profile(cluster, namespace, spec(), settings)
        assert not isinstance(laid, tuple)
        assert (laid.profile is not None) is taken
    assert isinstance(found, tuple)
    assert "AtomProfile site, named by spec.profile, is not for namespace team-b" in str(found[0])


@pytest.mark.parametrize("name", ["site", "default"])
async def test_an_operator_of_single_namespaces_tells_why_it_reads_none(name: str) -> None:
    settings = replace(OperatorSettings(engine_images=IMAGES), namespaces=("default",))
    found = await with_profile(FakeCluster(), "default", spec(profile=name), settings)
    assert isinstance(found, tuple)
    assert "watchNamespaces" in str(found[0])
    assert "create it" not in str(found[0])
