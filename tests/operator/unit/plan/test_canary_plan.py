"""A canary in the plan, at admission and by `kubectl atom`; and what it is judged by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom_operator.__main__ import main
from atom_operator.canary_spec import canary_spec, promoted_spec
from atom_operator.children.canary import content_digest
from atom_operator.cluster.prometheus import value_in
from atom_operator.domain import RequestCounts
from atom_operator.domain.canary import CanaryAnalysis, CanaryQuery
from atom_operator.kubectl_atom import main as kubectl_atom
from atom_operator.plan.canary.analysis import judge
from atom_operator.pods.engine_metrics import parse_metrics
from atom_operator.validation.canary import canary_warnings
from atom_operator.webhook.admission_review import parse_review
from atom_operator.webhook.reviewer import Reviewer
from tests.support.operator.builders_admission import creation
from tests.support.operator.builders_operator import (
    atom_deployment,
    cluster_with,
    gpu_node,
    parsed,
    reconciler,
    spec,
)


@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("share", [1, 10, 34, 50, 99])
@pytest.mark.parametrize("own", [None, 1, 2, 4])
@pytest.mark.parametrize("scales", [False, True])
def test_a_share_that_the_named_pods_of_a_canary_cannot_carry_is_warned_of(
    replicas: int, share: int, own: int | None, scales: bool
) -> None:
    canary = {**CANARY["canary"], "weight": share, "replicas": own}
    more: dict[str, Any] = {"replicas": 1 if scales else replicas}
    if scales:
        more["autoscaling"] = {"maxReplicas": replicas + 1, "minReplicas": 1}
    most = replicas + 1 if scales else replicas
    found = canary_warnings(parsed(**{**CANARY, **more, "canary": canary}))
    assert bool(found) == (own is not None and share * most > 100 * own), found
    if found:
        assert f"set replicas: {-(-share * most // 100)}" in found[0]


CANARY: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-8B"},
    "accelerator": {"type": "amd", "product": "MI300X"},
    "gateway": {"httpRoute": {"parentRefs": [{"name": "gate"}]}},
    "replicas": 3,
    "canary": {
        "change": {"engine": {"maxModelLen": 4096}, "parallelism": {"tensor": 2}},
        "weight": 10,
        "replicas": 2,
    },
}


def test_the_plan_says_what_both_need(tmp_path: Path, capsys: Any) -> None:
    path, nodes = tmp_path / "chat.yaml", tmp_path / "nodes.yaml"
    path.write_text(yaml.safe_dump(atom_deployment(**CANARY)))
    nodes.write_text(yaml.safe_dump_all([gpu_node("a", 8)]))
    code = main(["plan", "-f", str(path), "--nodes", str(nodes)])
    text = capsys.readouterr().out
    assert "AtomDeployment default/chat-canary" in text
    assert "3 + 2 replicas, 7 amd.com/gpu" in text
    assert "4 of 5 replicas, with those beside it, find a place now" in text  # of two devices each
    assert code == 1


async def test_an_apply_is_told_what_both_need_and_refused_what_can_never_be() -> None:
    cluster = cluster_with()
    cluster.nodes = [gpu_node("a", 4)]
    reviewer = Reviewer(cluster, reconciler(cluster).decider, answer_seconds=60)
    verdict = await reviewer.review(parse_review(creation(dry_run=False, **CANARY)))
    said = "\n".join(verdict.warnings)
    assert "canary, with the other pods: 3 + 2 replicas, 7 amd.com/gpu" in said
    assert "canary: nodes: " not in said  # both of its pods would find a place
    change = {"engine": {"extraArgs": ["--model=x"]}}
    asked = {**CANARY, "canary": {"change": change, "weight": 1}}
    verdict = await reviewer.review(parse_review(creation(**asked)))
    assert "spec.canary.change" in (verdict.refusal or "")
    asked = {**CANARY, "canary": {"change": {"parallelism": {"tensor": 3}}, "weight": 1}}
    verdict = await reviewer.review(parse_review(creation(**asked)))
    assert "spec.canary.change: makes spec.parallelism.tensor: " in (verdict.refusal or "")


def test_a_change_is_joined_by_key_and_by_name() -> None:
    change = {
        "model": {"source": "pvc://weights/new"},
        "engine": {"env": [{"name": "A", "value": "2"}], "image": "new:1"},
    }
    env = [{"name": "A", "valueFrom": {"fieldRef": {}}}, {"name": "B", "value": "b"}]
    changes: dict[str, Any] = {
        "model": {"source": "path:///old/tiny", "config": {"a": 1}},
        "engine": {"env": env, "maxModelLen": 512},
        "gateway": CANARY["gateway"],
        "autoscaling": {"maxReplicas": 2},
        "rollout": {"drainSeconds": 5, "window": {"start": "22:00", "minutes": 60}},
        "canary": {"change": change, "weight": 5},
    }
    raw, typed = spec(**changes), parsed(**changes)
    own = canary_spec(raw, typed)
    # Callers ask for the same name, and what was said of the other weights is not meant.
    assert own["model"] == {"source": "pvc://weights/new", "servedName": "tiny"}
    assert own["engine"]["env"] == [{"name": "A", "value": "2"}, {"name": "B", "value": "b"}]
    assert (own["engine"]["image"], own["engine"]["maxModelLen"]) == ("new:1", 512)
    assert own["replicas"] == 1
    assert own["rollout"] == {"drainSeconds": 5}  # a window keeps pods that serve, and not it
    assert not own.keys() & {"canary", "autoscaling", "gateway"}
    idle = {"maxReplicas": 2, "idle": "Sleep", "idleSeconds": 9}  # which is of the pods
    asleep = canary_spec({**raw, "autoscaling": idle}, parsed(**changes | {"autoscaling": idle}))
    assert asleep["autoscaling"] == {**idle, "minReplicas": 1, "maxReplicas": 1}
    promoted = promoted_spec(raw, typed)
    assert promoted["engine"] == own["engine"]
    assert promoted["autoscaling"] == {"maxReplicas": 2}


KUBECTL = """#!/bin/sh
case "$*" in
  *"get "*) cat {folder}/object.json ;;
  *"patch "*) for last; do :; done; echo "$last" >>{folder}/patches ;;
esac
"""


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (["promote", "chat"], [["add", "/spec/canary/decision", "Promote"]]),
        (["undo", "chat"], [["add", "/spec/canary/decision", "Undo"]]),
        (["hold", "chat"], [["add", "/spec/canary/decision", "Hold"]]),
        (["hold", "chat", "--off"], [["remove", "/spec/canary/decision", None]]),
        (
            ["promote", "chat", "--write"],
            [
                ["add", "/spec/engine", {"maxModelLen": 4096}],
                ["add", "/spec/parallelism", {"tensor": 2}],
                ["remove", "/spec/canary", None],
            ],
        ),
    ],
)
def test_a_decision_is_one_field(
    words: list[str], changes: list[Any], tmp_path: Path, monkeypatch: Any
) -> None:
    stored = atom_deployment(**CANARY)
    stored["metadata"]["resourceVersion"] = "7"
    stored["spec"]["canary"]["decision"] = "Hold"
    (tmp_path / "object.json").write_text(json.dumps(stored))
    script = tmp_path / "kubectl"
    script.write_text(KUBECTL.format(folder=tmp_path))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert kubectl_atom(["-n", "default", *words]) == 0
    patch = json.loads((tmp_path / "patches").read_text().removeprefix("--patch="))
    assert patch[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    assert [[item["op"], item["path"], item.get("value")] for item in patch[1:]] == changes


def test_an_act_names_the_change_that_its_author_has_seen(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    stored = atom_deployment(**CANARY)
    stored["metadata"]["resourceVersion"] = "7"
    change = content_digest(stored["spec"]["canary"]["change"])
    script = tmp_path / "kubectl"
    script.write_text(KUBECTL.format(folder=tmp_path))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    stored["status"] = {"canary": {"change": change}}
    (tmp_path / "object.json").write_text(json.dumps(stored))
    assert kubectl_atom(["-n", "default", "promote", "chat"]) == 0
    patch = json.loads((tmp_path / "patches").read_text().removeprefix("--patch="))
    assert patch[-1] == {"op": "add", "path": "/spec/canary/decisionFor", "value": change}
    (tmp_path / "patches").unlink()
    stored["status"] = {"canary": {"change": "0123456789abcdef"}}
    (tmp_path / "object.json").write_text(json.dumps(stored))
    assert kubectl_atom(["-n", "default", "undo", "chat"]) != 0
    assert "has not looked at the newest spec.canary.change" in capsys.readouterr().err
    assert not (tmp_path / "patches").exists()


METRICS = b"""atom:requests_finished_total{finished_reason="stop",model_name="m"} 90.0
atom:requests_finished_total{finished_reason="error",model_name="m"} 10.0
atom:requests_finished_total{finished_reason="abort",model_name="m"} 5.0
atom:time_to_first_token_seconds_count{model_name="m"} 100.0
atom:time_to_first_token_seconds_sum{model_name="m"} 12.5
"""


def test_engines_tell_what_became_of_their_requests() -> None:
    assert parse_metrics(METRICS).requests == RequestCounts(100, 10, 100, 12.5)
    assert parse_metrics(b"something_else 1\n").requests is None


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ({"resultType": "scalar", "result": [1, "0.5"]}, 0.5),
        ({"resultType": "vector", "result": [{"metric": {}, "value": [1, "3"]}]}, 3.0),
        ({"resultType": "vector", "result": []}, "it has 0 series, and one is needed"),
        ({"resultType": "scalar", "result": [1, "NaN"]}, "it has no number"),
        (None, "Prometheus refuses it: parse error"),
    ],
)
def test_a_query_has_one_value_or_words(body: Any, value: Any) -> None:
    answer = {"status": "success", "data": body}
    if body is None:
        answer = {"status": "error", "error": "parse error"}
    assert value_in(json.dumps(answer).encode()) == value
    assert isinstance(value_in(b"<html>"), str)


@pytest.mark.parametrize(
    ("counts", "value", "passes", "words"),
    [
        (RequestCounts(100, 2, 100, 10.0), 1.0, True, "query load is 1"),
        (RequestCounts(100, 3, 100, 10.0), 1.0, False, "3.0% of 100 requests failed"),
        (RequestCounts(100, 0, 100, 30.0), 1.0, False, "300 ms on average, 200 ms may"),
        (RequestCounts(100, 0, 100, 10.0), 9.0, False, "query load is 9, at most 5 is asked"),
        (RequestCounts(10, 0), 1.0, None, "10 of 20 requests"),
        (RequestCounts(100, 9), "no answer", False, "9.0%"),  # one that fails is enough
        (RequestCounts(100, 0), "no answer", None, "query load: no answer"),
        (None, 1.0, None, "0 of 20"),
    ],
)
def test_one_broken_bound_fails_and_one_that_is_unknown_decides_nothing(
    counts: RequestCounts | None, value: float | str, passes: bool | None, words: str
) -> None:
    analysis = CanaryAnalysis(2, 200, 20, (CanaryQuery("load", "q", None, 5.0),), 60, 3)
    found = judge(analysis, [counts], {"load": value})
    assert found.passes is passes
    assert words in found.words
