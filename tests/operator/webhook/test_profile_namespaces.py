"""Which namespaces may take a profile, by name or by label: the same for reconciling, for an
AtomProfile under admission, and for the plan command."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom_operator.__main__ import main
from atom_operator.constants import LABEL_PROFILE
from atom_operator.domain import ATOM_DEPLOYMENT, ATOM_PROFILE, NAMESPACE
from atom_operator.reconcile.profiles.find_profile import with_profile
from atom_operator.settings import OperatorSettings
from atom_operator.webhook.admission_review import parse_review
from atom_operator.webhook.reviewer import Reviewer
from tests.support.operator.builders_admission import review_body
from tests.support.operator.builders_operator import IMAGES, atom_deployment, reconciler, spec
from tests.support.operator.fake_cluster import FakeCluster

# Names, selectors and labels, each with what it is: the cases are all triples of them.
NAMES: dict[str, list[str] | None] = {"none": None, "its": ["lab", "team-*"], "others": ["lab"]}
SELECTORS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "all": {},
    "labels": {"matchLabels": {"env": "prod"}},
    "in": {"matchExpressions": [{"key": "env", "operator": "In", "values": ["prod", "lab"]}]},
    "not in": {"matchExpressions": [{"key": "env", "operator": "NotIn", "values": ["lab"]}]},
    "exists": {"matchExpressions": [{"key": "env", "operator": "Exists"}]},
    "absent": {"matchExpressions": [{"key": "env", "operator": "DoesNotExist"}]},
    "both": {
        "matchLabels": {"env": "prod"},
        "matchExpressions": [{"key": "tier", "operator": "Exists"}],
    },
}
LABELS: dict[str, dict[str, str]] = {
    "no label": {},
    "prod": {"env": "prod"},
    "lab": {"env": "lab"},
    "prod and tier": {"env": "prod", "tier": "1"},
}
# By Kubernetes' rules: the labels that a selector matches.
MATCHED = {
    "all": set(LABELS),
    "labels": {"prod", "prod and tier"},
    "in": {"prod", "lab", "prod and tier"},
    "not in": {"no label", "prod", "prod and tier"},
    "exists": {"prod", "lab", "prod and tier"},
    "absent": {"no label"},
    "both": {"prod and tier"},
}
CASES = list(itertools.product(NAMES, SELECTORS, LABELS))
_SETTINGS = OperatorSettings(engine_images=IMAGES)


def _profile(names: str, selector: str) -> dict[str, Any]:
    said: dict[str, Any] = {"proxy": {"http": "http://p:1"}}
    if NAMES[names] is not None:
        said["namespaces"] = NAMES[names]
    if SELECTORS[selector] is not None:
        said["namespaceSelector"] = SELECTORS[selector]
    return said


def _is_open(names: str, selector: str, labels: str) -> bool:
    if names == selector == "none":
        return True
    return names == "its" or labels in MATCHED.get(selector, set())


def _namespace(labels: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "team-a", "namespace": "", "labels": labels}}


@pytest.mark.parametrize(("names", "selector", "labels"), CASES)
async def test_a_namespace_takes_a_profile_by_its_name_or_by_its_labels(
    names: str, selector: str, labels: str
) -> None:
    cluster, is_open = FakeCluster(), _is_open(names, selector, labels)
    cluster.create(NAMESPACE, _namespace(LABELS[labels]))
    for name in ("site", "default"):
        metadata = {"name": name, "namespace": ""}
        cluster.create(ATOM_PROFILE, {"metadata": metadata, "spec": _profile(names, selector)})
    named = await with_profile(cluster, "team-a", spec(profile="site"), _SETTINGS)
    assert isinstance(named, tuple) is not is_open
    if isinstance(named, tuple):
        assert "AtomProfile site, named by spec.profile, is not for namespace team-a" in (
            str(named[0])
        )
        assert "spec.namespaceSelector" in str(named[0])
    laid = await with_profile(cluster, "team-a", spec(), _SETTINGS)
    assert not isinstance(laid, tuple)
    assert (laid.profile is not None) is is_open


@pytest.mark.parametrize("by", ["name", "label"])
@pytest.mark.parametrize(("names", "selector", "labels"), CASES)
async def test_admission_names_those_that_a_profile_shuts_out(
    names: str, selector: str, labels: str, by: str
) -> None:
    cluster = FakeCluster()
    asked = {"profile": "site"} if by == "name" else {}
    own = {LABEL_PROFILE: "site"} if by == "label" else {}
    cluster.create(NAMESPACE, _namespace({**LABELS[labels], **own}))
    deployment = atom_deployment("chat", **asked)
    deployment["metadata"]["namespace"] = "team-a"
    cluster.create(ATOM_DEPLOYMENT, deployment)
    open_to_all = {"metadata": {"name": "site", "uid": "u"}, "spec": {}}
    fenced = {"metadata": {"name": "site", "uid": "u"}, "spec": _profile(names, selector)}
    body = review_body(fenced, open_to_all)
    body["request"]["kind"] = {"kind": "AtomProfile"}
    reviewer = Reviewer(cluster, reconciler(cluster).decider, answer_seconds=60)
    verdict = await reviewer.review(parse_review(body))
    assert verdict.refusal is None
    warned = "team-a/chat: spec.profile" in " ".join(verdict.warnings)
    assert warned is not _is_open(names, selector, labels)


@pytest.mark.parametrize(("names", "selector", "labels"), CASES)
def test_the_plan_command_judges_alike(
    tmp_path: Path, capsys: Any, names: str, selector: str, labels: str
) -> None:
    metadata = {"name": "default"}
    profile = {"apiVersion": "serving.atom.dev/v1alpha1", "kind": "AtomProfile"}
    profile |= {"metadata": metadata, "spec": _profile(names, selector)}
    namespace = {"kind": "Namespace", **_namespace(LABELS[labels])}
    deployment = atom_deployment()
    deployment["metadata"]["namespace"] = "team-a"
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all([deployment, profile, namespace]))
    assert main(["plan", "-f", str(path)]) == 0
    taken = "default, below the spec" in capsys.readouterr().out
    assert taken is _is_open(names, selector, labels)


@pytest.mark.parametrize("named", [True, False])
def test_the_plan_command_asks_for_a_namespace_that_it_lacks(
    tmp_path: Path, capsys: Any, named: bool
) -> None:
    selector = {"matchLabels": {"env": "prod"}}
    said = {"namespaceSelector": selector, **({"namespaces": ["team-*"]} if named else {})}
    profile = {"apiVersion": "serving.atom.dev/v1alpha1", "kind": "AtomProfile"}
    profile |= {"metadata": {"name": "default"}, "spec": said}
    deployment = atom_deployment()
    deployment["metadata"]["namespace"] = "team-a"
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all([deployment, profile]))
    assert main(["plan", "-f", str(path)]) == (0 if named else 1)
    words = " ".join(capsys.readouterr().out.split())
    assert ("give its Namespace" in words) is not named
