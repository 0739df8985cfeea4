"""AtomProfiles of the installed operator, with the chart's rights: who may use one, and users."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tools.kube import Kube, condition, is_current, wait_until
from tools.on_cluster import Images, demo_manifest

pytestmark = pytest.mark.cluster

PROFILE, NAME, LABEL = "research", "profiled", "gpu-tenant"


@pytest.fixture(scope="module")
def profiled(kube: Kube, images: Images) -> Iterator[Kube]:
    """A profile for labelled namespaces, and an AtomDeployment that names it; no pod is needed."""
    profile: dict[str, Any] = {
        "apiVersion": "serving.atom.dev/v1alpha1",
        "kind": "AtomProfile",
        "metadata": {"name": PROFILE},
        "spec": {
            "namespaceSelector": {"matchLabels": {LABEL: "true"}},
            "engine": {"env": [{"name": "FROM_PROFILE", "value": "yes"}]},
        },
    }
    manifest = yaml.safe_load(demo_manifest(images))
    manifest["metadata"]["name"] = NAME
    manifest["spec"] |= {"replicas": 0, "profile": PROFILE}
    kube.apply(yaml.safe_dump(profile))
    kube.apply(yaml.safe_dump(manifest))
    yield kube
    kube.kubectl("delete", "atomd", NAME)
    kube.kubectl("delete", "atomprofile", PROFILE)
    kube.kubectl("label", "namespace", kube.namespace, f"{LABEL}-")


def accepted(kube: Kube) -> tuple[str, str] | None:
    item = kube.get("atomd", NAME)
    found = condition(item, "Accepted")
    return (found["status"], found["reason"]) if is_current(item) and found else None


def counts(kube: Kube) -> dict[str, Any]:
    return dict(kube.get("atomprofile", PROFILE).get("status") or {})


def test_a_label_of_the_namespace_decides_about_a_profile(profiled: Kube) -> None:
    def refused() -> bool:
        return accepted(profiled) == ("False", "InvalidProfile")

    wait_until("a namespace without the label is refused", refused)
    profiled.kubectl("label", "namespace", profiled.namespace, f"{LABEL}=true")

    def taken() -> bool:
        return (accepted(profiled) or ("", ""))[0] == "True"

    wait_until("the label is enough", taken)
    pod = profiled.get("deployment", NAME)["spec"]["template"]["spec"]
    (engine,) = [item for item in pod["containers"] if item["name"] == "engine"]
    assert {"name": "FROM_PROFILE", "value": "yes"} in engine["env"]


def test_a_profile_counts_its_users(profiled: Kube) -> None:
    wait_until("one user", lambda: counts(profiled).get("deployments") == 1)
    profiled.kubectl("patch", "atomd", NAME, "--type=merge", '--patch={"spec":{"profile":null}}')
    wait_until("no user", lambda: counts(profiled) == {"deployments": 0, "waiting": 0})
