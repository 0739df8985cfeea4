"""Flux's health expressions: of fields that exist, and evaluated over what the reconciler writes.

A real API server evaluates them, as a ValidatingAdmissionPolicy over updates of the status: it has
the CEL library that Flux has. In Flux, inProgress goes before failed, and failed before current.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from atom_operator.api.crd import build_crd
from atom_operator.constants import API_VERSION, KIND, ConditionType, Reason
from atom_operator.domain import Manifest
from tests.support.cluster.live_cluster import ROOT, LiveCluster
from tests.support.operator.builders_operator import atom_deployment
from tests.support.operator.situations import SITUATIONS, situation

GUIDE = ROOT / "docs" / "guides" / "gitops.md"
FILE = ROOT / "docs" / "guides" / "flux" / "health-checks.yaml"
ORDER = {"inProgress": "InProgress", "failed": "Failed", "current": "Current"}

HEALTH = {
    "new": "InProgress",
    "changed since the last look": "InProgress",
    "serving": "Current",
    "rolling out": "InProgress",
    "waiting for a node": "InProgress",
    "downloading": "InProgress",
    "download failed": "Failed",
    "first pod fails": "InProgress",
    "replica lost": "InProgress",
    "replica crashes": "InProgress",
    "deadline passed": "Failed",
    "rolled back": "Failed",
    "child refused": "Failed",
    "invalid": "Failed",
    "too large": "Failed",
    "too large a change": "Failed",
    "scaled to zero": "Current",
    "suspended": "Current",
}


def expressions() -> dict[str, str]:
    (check,) = yaml.safe_load(FILE.read_text(encoding="utf-8"))["healthCheckExprs"]
    assert (check.pop("apiVersion"), check.pop("kind")) == (API_VERSION, KIND)
    return dict(check)


def test_the_guide_shows_the_file() -> None:
    assert FILE.read_text(encoding="utf-8") in GUIDE.read_text(encoding="utf-8")


def test_every_situation_has_an_expected_health() -> None:
    assert list(HEALTH) == list(SITUATIONS)


def test_conditions_reasons_and_fields_exist() -> None:
    text = " ".join(expressions().values())
    kinds = set(re.findall(r"\.type == '(\w+)'", text))
    assert kinds == {"Ready", "Stalled", "Suspended"}
    assert kinds <= {kind.value for kind in ConditionType}
    assert set(re.findall(r"\.reason [!=]= '(\w+)'", text)) <= {reason.value for reason in Reason}
    schema = build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    status = schema["properties"]["status"]
    # Absent fields would be errors; these are in every status.
    assert set(re.findall(r"status\.(\w+)", text)) <= set(status["required"])


@contextmanager
def evaluated(cluster: LiveCluster) -> Iterator[Callable[[Manifest], str]]:
    """A function that says which expression is true first, for an object's status."""
    rule = {
        "apiGroups": ["serving.atom.dev"],
        "apiVersions": ["v1alpha1"],
        "operations": ["UPDATE"],
        "resources": ["atomdeployments/status"],
    }
    here = {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}}
    choice = "".join(f"variables.{name} ? '{word}' : " for name, word in ORDER.items())
    spec: dict[str, Any] = {
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": here},
        "variables": [
            {"name": name, "expression": re.sub(r"(?<![\w.])(?=(status|metadata)\.)", "object.", e)}
            for name, e in expressions().items()
        ],
        "validations": [
            {"expression": "false", "messageExpression": f"'health=' + ({choice}'InProgress')"}
        ],
    }
    group = "admissionregistration.k8s.io/v1"
    policy = {"apiVersion": group, "kind": "ValidatingAdmissionPolicy", "spec": spec}
    bound = {"policyName": cluster.namespace, "validationActions": ["Deny"]}
    binding = {"apiVersion": group, "kind": "ValidatingAdmissionPolicyBinding", "spec": bound}
    try:
        for manifest in (policy, binding):
            named = {**manifest, "metadata": {"name": cluster.namespace}}
            cluster.kubectl("apply", "--filename=-", manifest=named)
        yield lambda manifest: _ask(cluster, manifest)
    finally:
        for manifest in (binding, policy):
            cluster.kubectl("delete", str(manifest["kind"]), cluster.namespace)


def _ask(cluster: LiveCluster, manifest: Manifest) -> str:
    """The verdict; empty while the policy is not in force yet."""
    status, generation = manifest["status"], manifest["metadata"]["generation"]
    # The object there is of generation 1.
    observed = 1 - (generation - status["observedGeneration"])
    patch = json.dumps({"status": {**status, "observedGeneration": observed}})
    answer = cluster.kubectl(
        "patch", "atomd", "chat", "--subresource=status", "--type=merge", "--dry-run=server",
        f"--patch={patch}", check=False,
    )  # fmt: skip
    found = re.search(r"health=(\w+)", answer.stderr)
    assert found or answer.returncode == 0, answer.stderr
    return found[1] if found else ""


@pytest.mark.cluster
async def test_flux_sees_what_the_reconciler_means(namespaced: LiveCluster) -> None:
    manifest = atom_deployment()
    manifest["metadata"]["namespace"] = namespaced.namespace
    namespaced.kubectl("apply", "--filename=-", manifest=manifest)
    with evaluated(namespaced) as ask:
        serving = await situation("serving")
        namespaced.wait("policy in force", lambda: ask(serving) or None)
        # Without a status Flux has nothing to evaluate, and waits.
        written = {name: await situation(name) for name in SITUATIONS if name != "new"}
        seen = {name: ask(item) for name, item in written.items()}
    assert {"new": "InProgress", **seen} == HEALTH
