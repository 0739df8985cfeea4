"""A manifest is judged without a cluster: structure, names, defaults and every rule of the CRDs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import islice
from typing import Any

import pytest

from atom_operator import constants
from atom_operator.api.crd import build_crd, build_profile_crd
from atom_operator.served_schema import cel_rules
from atom_operator.served_schema.manifest import judge, unknown_kind
from tests.operator.crd.test_crd_on_api_server import ACCEPTED, REFUSED
from tests.support.operator.builders_operator import atom_deployment
from tests.support.operator.odd_manifests import odd_manifests

CRDS = {constants.KIND: build_crd(), constants.PROFILE_KIND: build_profile_crd()}


def schema_of(kind: str) -> dict[str, Any]:
    return dict(CRDS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def nodes(schema: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[Any, Any]]:
    """Yield every node of a schema with its path; a list's items have "0" in theirs."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, (*path, name))
    if "items" in schema:
        yield from nodes(schema["items"], (*path, "0"))


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_the_api_server_accepts_is_accepted(name: str) -> None:
    assert judge(atom_deployment(**ACCEPTED[name])).problems == ()


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_what_the_api_server_refuses_is_refused(changes: dict[str, Any], words: str) -> None:
    problems = judge(atom_deployment(**changes)).problems
    assert problems
    for problem in problems:
        assert problem.field.startswith("spec"), words
        assert "Input should" not in problem.message
        assert "pydantic" not in problem.message


def test_every_rule_of_the_crds_is_evaluated_and_can_be_broken() -> None:
    """Both come from drawn manifests: a rule that never holds, or that cannot fail, is a fault of
    the evaluator or of the rule."""
    rules = {
        rule["rule"]: set[bool]()
        for kind in CRDS
        for _, node in nodes(schema_of(kind), ())
        for rule in node.get("x-kubernetes-validations", ())
    }
    assert len(rules) > 25
    real = cel_rules._holds

    def noted(rule: str, itself: Any) -> bool:
        verdict = real(rule, itself)
        rules[rule].add(verdict)
        return verdict

    cases = [*ACCEPTED.values(), *(changes for changes, _ in REFUSED)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cel_rules, "_holds", noted)
        for changes in [*cases, *FURTHER]:
            judge(atom_deployment(**changes))
        judge(atom_deployment(name="1st"))
        for spec in PROFILES:
            judge(atom_profile(spec))
    assert {rule: seen for rule, seen in rules.items() if seen != {True, False}} == {}


def atom_profile(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": constants.API_VERSION,
        "kind": constants.PROFILE_KIND,
        "metadata": {"name": "team"},
        "spec": spec,
    }


ROUTE: dict[str, Any] = {"httpRoute": {"parentRefs": [{"name": "gate"}]}}
CHANGE: dict[str, Any] = {"engine": {"maxNumSeqs": 4}}
QUERY: dict[str, Any] = {"name": "errors", "query": "vector(1)"}
# Rules that the tables of the API server's test do not meet.
FURTHER: list[dict[str, Any]] = [
    {"cache": {"kv": {"hostMemory": "8Gi"}}},
    {"cache": {"kv": {"hostMemory": "0"}}},
    {"disaggregation": {}},
    {"disaggregation": {"prefill": {}}},
    {"disaggregation": {"prefillFor": "chat"}},
    {"disaggregation": {"prefillFor": "chat", "decode": {}}},
    {"disaggregation": {"prefill": {}, "decode": {"replicas": 3}}, "replicas": 2},
    {
        "disaggregation": {"prefill": {}, "decode": {"autoscaling": {"maxReplicas": 3}}},
        "autoscaling": {"maxReplicas": 2},
    },
    {"canary": {"change": CHANGE, "weight": 10}},
    {"canary": {"change": {}, "weight": 10}, "gateway": ROUTE},
    {"canary": {"change": CHANGE, "weight": 10}, "gateway": ROUTE},
    {"canary": {"change": CHANGE}, "gateway": ROUTE},
    *(
        {
            "canary": {"change": CHANGE, "weight": 1, "analysis": {"queries": [query]}},
            "gateway": ROUTE,
        }
        for query in (QUERY, {**QUERY, "max": 1})
    ),
    {"adapters": [{"name": "a", "source": "path:///adapters/a"}]},
    {"engine": {"lora": {"maxLoras": 4, "maxCpuLoras": 2}}},
    {"engine": {"lora": {"maxLoras": 2, "maxCpuLoras": 2}}},
    {"model": {"source": "path:///models/tiny"}, "cache": {"weights": {"claim": "models"}}},
    {"accelerator": {"type": "amd", "claim": {}}},
    {"accelerator": {"type": "amd", "claim": {}, "resourceName": "amd.com/gpu"}},
    {"accelerator": {"type": "cpu", "claim": {}}},
    {"accelerator": {"type": "cpu", "deviceGroups": []}},
    {"accelerator": {"type": "cpu"}},
    {"gateway": {"pickerTemplate": {"metadata": {"labels": {"a": "b"}}}}},
]
PROFILES: list[dict[str, Any]] = [
    {"accelerator": {"claim": {}, "resourceName": "amd.com/gpu"}},
    {"accelerator": {"resourceName": "amd.com/gpu"}},
    *(
        {"namespaceSelector": {"matchExpressions": [{"key": "env", "operator": name, **values}]}}
        for name in ("In", "NotIn", "Exists", "DoesNotExist")
        for values in ({}, {"values": []}, {"values": ["prod"]})
    ),
]


def test_odd_manifests_are_judged_without_an_exception() -> None:
    bases = [atom_deployment(**changes) for changes in ACCEPTED.values()]
    seen = [bool(judge(item).problems) for item in islice(odd_manifests(bases, 7), 240)]
    assert {True, False} == set(seen)


@pytest.mark.parametrize(
    ("spec", "field", "meant"),
    [
        ({"max_model_len": 1}, "spec.max_model_len", "spec.engine.maxModelLen"),
        ({"maxModelLen": 1}, "spec.maxModelLen", "spec.engine.maxModelLen"),
        ({"engine": {"max_num_seqs": 1}}, "spec.engine.max_num_seqs", "maxNumSeqs"),
        ({"engine": {"maxNumSeq": 1}}, "spec.engine.maxNumSeq", "maxNumSeqs"),
        ({"accelerator": {"product": "mi300x"}}, "spec.accelerator.product", "MI300X"),
        ({"rollout": {"strategy": "in-place"}}, "spec.rollout.strategy", "InPlace"),
    ],
)
def test_what_was_meant_is_suggested(spec: dict[str, Any], field: str, meant: str) -> None:
    problems = judge(atom_deployment(**spec)).problems
    assert f"did you mean {meant}?" in {p.field: p.message for p in problems}[field]


@pytest.mark.parametrize("kind", CRDS)
def test_every_field_in_snake_case_is_refused_with_its_name(kind: str) -> None:
    for path, node in nodes(schema_of(kind)["properties"]["spec"], ("spec",)):
        for name in node.get("properties", {}):
            snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
            if snake == name or node.get("x-kubernetes-preserve-unknown-fields"):
                continue
            manifest = atom_deployment() if kind == constants.KIND else atom_profile({})
            _set(manifest, (*path, snake), 1)
            place = ".".join(path).replace(".0", "[0]") + f".{snake}"
            words = [p.message for p in judge(manifest).problems if p.field == place]
            assert words == [f"unknown field; did you mean {name}?"], place


def _set(manifest: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    node: Any = manifest
    for step, following in itertools.pairwise(path):
        if step == "0":
            node.append({} if following != "0" else [])
            node = node[0]
        else:
            node = node.setdefault(step, [] if following == "0" else {})
    node[path[-1]] = value


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        ({"apiVersion": "serving.atom.dev/v1"}, "apiVersion"),
        ({"apiVersion": None}, "apiVersion"),
        ({"spec": None}, "spec"),
        ({"unknown": 1}, "unknown"),
        ({"metadata": {"name": "chat", "lables": {}}}, "metadata.lables"),
        ({"metadata": {"name": "chat", "labels": {"a": 1}}}, "metadata.labels.a"),
        ({"metadata": {"name": "chat", "labels": {"a b": "c"}}}, "metadata.labels.a b"),
        ({"metadata": {"name": "chat", "labels": {"a": "c d"}}}, "metadata.labels.a"),
        ({"metadata": {"name": "Chat"}}, "metadata.name"),
        ({"metadata": {"name": "x" * 41}}, "metadata.name"),
        ({"metadata": {"name": 1}}, "metadata.name"),
    ],
)
def test_what_no_crd_describes_is_judged_too(edit: dict[str, Any], field: str) -> None:
    manifest = {**atom_deployment(), **edit}
    manifest = {name: value for name, value in manifest.items() if value is not None}
    assert field in [problem.field for problem in judge(manifest).problems]


def test_defaults_are_filled_in_and_nulls_removed() -> None:
    written = atom_deployment(accelerator={"product": "MI300X"}, engine={"maxNumSeqs": None})
    before = deepcopy(written)
    stored = judge(written).stored["spec"]
    assert stored["accelerator"] == {"product": "MI300X", "type": "amd"}
    assert (stored["engine"], stored["replicas"]) == ({}, 1)
    assert json.dumps(written) == json.dumps(before)


@pytest.mark.parametrize(
    ("kind", "version", "words"),
    [
        ("AtomDeploymnet", constants.API_VERSION, "did you mean AtomDeployment?"),
        ("atomdeployment", "v1", "did you mean AtomDeployment?"),
        ("Widget", constants.API_VERSION, "it serves AtomDeployment and AtomProfile"),
    ],
)
def test_a_kind_that_is_not_served_is_named(kind: str, version: str, words: str) -> None:
    (problem,) = unknown_kind({"apiVersion": version, "kind": kind})
    assert words in problem.message


@pytest.mark.parametrize("kind", ["Deployment", "ConfigMap", "Node", "AtomProfile"])
def test_other_kinds_are_left_to_others(kind: str) -> None:
    assert unknown_kind({"apiVersion": "v1", "kind": kind}) == ()
