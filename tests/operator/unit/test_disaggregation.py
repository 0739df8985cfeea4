"""spec.disaggregation: flags of the roles, refusals, the words of the plan, autoscalers."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom.sizing.options.beside_transfer import BesideTransfer, transfer_problems
from atom_operator.children.autoscaling.autoscaler import autoscaler
from atom_operator.children.network import network_policy
from atom_operator.children.render import render
from atom_operator.children.workload import pod_template
from atom_operator.constants import LABEL_LLM_D_ROLE, Reason
from atom_operator.domain import (
    CONFIG_MAP,
    EngineOutlook,
    EngineView,
    Latencies,
    ObjectKey,
    Owner,
    Plan,
)
from atom_operator.domain.profile import Profile
from atom_operator.plan.spec_digest import spec_digest, spec_in_force
from atom_operator.plan_report import facts
from atom_operator.reconcile.planning import (
    ANYWHERE,
    Considered,
    SpecLayers,
    Surroundings,
    consider,
    plan_spec,
)
from atom_operator.status.slo.slo_met import slo_met
from atom_operator.validation.parsing import parse_spec
from atom_operator.validation.role_pods import decode_pods, prefill_pods, without_numbers
from atom_operator.webhook.reviewer import faults_of
from tests.operator.unit.test_rendering import SITE
from tests.support.operator.builders_operator import IMAGES, KEY, parsed, plan, spec

GOLDEN = Path(__file__).parent.parent / "golden"
GPU: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-8B"},
    "accelerator": {"type": "amd", "product": "MI300X"},
}
DIVIDED: dict[str, Any] = {"disaggregation": {"prefill": {}}}


def considered(**changes: Any) -> Considered:
    return consider(Owner(KEY, "uid"), parsed(**changes), Surroundings(IMAGES, site=SITE))


def problems(**changes: Any) -> str:
    return "; ".join(map(str, considered(**changes).problems))


def prefill_of(planned: Plan) -> Plan:
    """The plan of the prefill pods that go with the decode pods of `planned`."""
    raw = prefill_pods(planned)
    assert raw is not None
    found = parse_spec(raw)
    assert not isinstance(found, tuple), found
    layers = SpecLayers(planned.pods.profile)
    around = Surroundings(IMAGES, site=SITE, layers=layers)
    result = plan_spec(Owner(ObjectKey("default", "chat-prefill"), "uid"), found, around)
    assert isinstance(result, Plan), result
    return result


def arguments(planned: Plan) -> list[str]:
    return list(pod_template(planned)["spec"]["containers"][0]["args"])


def transfer_of(planned: Plan) -> dict[str, Any]:
    args = arguments(planned)
    return dict(json.loads(args[args.index("--kv-transfer-config") + 1]))


# --- the pods of both roles ---------------------------------------------------------------------


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_each_role_is_rendered_as_the_golden_file_has_it(role: str) -> None:
    changes = {
        **GPU,
        "disaggregation": {
            "prefill": {"replicas": 2, "engine": {"maxNumBatchedTokens": 16384}},
            "decide": {"minNonCachedTokens": 1024},
            "transport": "TCP",
        },
        "networkPolicy": {},
    }
    planned = plan(site=SITE, **changes)
    planned = planned if role == "decode" else prefill_of(planned)
    documents = [item for key, item in render(planned).items() if key.kind != CONFIG_MAP]
    path = GOLDEN / f"disaggregation-{role}.yaml"
    text = yaml.safe_dump_all(documents, sort_keys=False)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_the_roles_have_their_parts_of_the_exchange() -> None:
    decode = plan(**GPU, **DIVIDED)
    prefill = prefill_of(decode)
    assert transfer_of(decode)["kv_role"] == "kv_consumer"
    assert transfer_of(prefill)["kv_role"] == "kv_producer"
    for planned, role in ((decode, "decode"), (prefill, "prefill")):
        assert pod_template(planned)["metadata"]["labels"][LABEL_LLM_D_ROLE] == role
    assert "--kv-transfer-config" not in arguments(plan(**GPU))


def test_fields_of_a_role_are_of_that_role_alone() -> None:
    own = {
        "prefill": {"replicas": 3, "engine": {"maxNumSeqs": 32}, "parallelism": {"data": 2}},
        "decode": {"replicas": 2, "engine": {"maxNumSeqs": 64}},
    }
    decode = plan(**GPU, disaggregation=own)
    prefill = prefill_of(decode)
    assert (decode.scale.replicas, prefill.scale.replicas) == (2, 3)
    assert decode.engine.scheduler.max_num_seqs == 64
    assert prefill.engine.scheduler.max_num_seqs == 32
    assert (decode.engine.data_parallel, prefill.engine.data_parallel) == (1, 2)


def test_prefill_pods_have_every_default_resolved() -> None:
    """So that a changed profile or default image changes them with the decode pods alone."""
    profile = Profile("site", template={"spec": {"priorityClassName": "serving"}})
    around = Surroundings(IMAGES, layers=SpecLayers(profile))
    decode = plan_spec(Owner(KEY, "uid"), parsed(**GPU, **DIVIDED), around)
    assert isinstance(decode, Plan)
    raw = prefill_pods(decode)
    assert raw is not None
    assert raw["engine"]["image"] == decode.engine.serving.image
    assert raw["disaggregation"]["profile"]["template"] == profile.template
    assert pod_template(replace(prefill_of(decode)))["spec"]["priorityClassName"] == "serving"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("autoscaling", {"maxReplicas": 4, "prometheus": {"serverAddress": "http://p:9090"}}),
        ("frontend", {"replicas": 3}),
        ("gateway", {"httpRoute": {"parentRefs": [{"name": "gate"}]}}),
        ("profile", "site"),
        ("rollout", {"window": {"start": "01:00", "minutes": 60}, "urgent": True}),
    ],
)
def test_what_the_whole_has_is_not_of_prefill_pods(field: str, value: Any) -> None:
    raw = prefill_pods(plan(site=SITE, **GPU, **DIVIDED, **{field: value}))
    assert raw is not None
    assert field not in raw


# --- revisions ----------------------------------------------------------------------------------


def _digest(changes: Mapping[str, Any]) -> str:
    return spec_digest(decode_pods(parsed(**changes)), "image", None)


def test_numbers_of_either_role_replace_no_pod() -> None:
    role = {"replicas": 4, "autoscaling": {"maxReplicas": 6}}
    more = {"disaggregation": {"prefill": role, "decide": {"minNonCachedTokens": 9}}}
    assert _digest(DIVIDED) == _digest(more)
    assert _digest(DIVIDED) != _digest({})
    assert _digest(DIVIDED) != _digest({"disaggregation": {"prefill": {}, "transport": "TCP"}})


def test_decode_fields_are_those_of_the_spec_for_its_pods() -> None:
    inside = {"disaggregation": {"prefill": {}, "decode": {"engine": {"maxNumSeqs": 8}}}}
    assert _digest(inside) == _digest({**DIVIDED, "engine": {"maxNumSeqs": 8}})


def test_pods_in_force_keep_their_roles_with_the_newest_numbers() -> None:
    pods = spec(disaggregation={"prefill": {"replicas": 1, "engine": {"maxNumSeqs": 8}}})
    newest = spec(disaggregation={"prefill": {"replicas": 5, "engine": {"maxNumSeqs": 16}}})
    merged = spec_in_force(newest, pods)["disaggregation"]
    assert merged == {"prefill": {"replicas": 5, "engine": {"maxNumSeqs": 8}}}
    assert "disaggregation" not in spec_in_force(newest, spec())
    assert spec_in_force(spec(), pods)["disaggregation"] == pods["disaggregation"]


def test_a_canary_has_pairs_of_a_fixed_number() -> None:
    roles = {"prefill": {"replicas": 4, "engine": {"maxNumSeqs": 8}}, "decode": {"replicas": 3}}
    assert without_numbers(roles) == {"prefill": {"engine": {"maxNumSeqs": 8}}, "decode": {}}


# --- refusals -----------------------------------------------------------------------------------

_HYBRID = {"model": {"source": "hf://Qwen/Qwen3-Next-80B-A3B-Instruct"}}
# Each option that the engine's rule knows, in a spec and as the rule has it.
_BESIDE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "prefix cache": ({"engine": {"prefixCaching": False}}, {"prefix_caching": False}),
    "ranks": ({"parallelism": {"tensor": 2}}, {"tensor_parallel": 2}),
    "sleep": ({"engine": {"extraArgs": ["--enable-sleep-mode"]}}, {"may_sleep": True}),
    "pooling": ({"engine": {"extraArgs": ["--runner", "pooling"]}}, {"pools": True}),
    "idle": (
        {"autoscaling": {"minReplicas": 1, "maxReplicas": 1, "idle": "Sleep"}},
        {"may_sleep": True},
    ),
}


@pytest.mark.parametrize(
    "names", [*itertools.combinations(_BESIDE, 1), *itertools.combinations(_BESIDE, 2)], ids=str
)
def test_what_the_engine_refuses_is_refused_in_its_words(names: tuple[str, ...]) -> None:
    changes: dict[str, Any] = {}
    rule: dict[str, Any] = {
        "prefix_caching": True, "pools": False, "tensor_parallel": 1, "nodes": 1,
        "shares_experts": False, "by_layers": False, "may_sleep": False,
    }  # fmt: skip
    for name in names:
        for field, value in _BESIDE[name][0].items():
            before = changes.get(field)
            if isinstance(before, dict) and "extraArgs" in before and "extraArgs" in value:
                value = {"extraArgs": [*before["extraArgs"], *value["extraArgs"]]}
            changes[field] = {**(before or {}), **value}
        rule |= _BESIDE[name][1]
    expected = set(transfer_problems(BesideTransfer(**rule)))
    told = problems(**{**GPU, **DIVIDED, **changes})
    assert all(f"spec.disaggregation: {words}" in told for words in expected), (told, expected)
    assert not [words for words in transfer_problems(BesideTransfer(**rule)) if words not in told]
    whole = problems(**{**GPU, **changes})
    assert not any(words in whole for words in expected), "it is no fault without the field"


def test_a_model_with_states_is_divided() -> None:
    known = considered(**{**GPU, **_HYBRID}, **DIVIDED)
    assert known.plan is not None
    assert known.plan.model.facts is not None
    assert known.plan.model.facts.keeps_states, "the case needs a model with states"
    assert not any(problem.field == "spec.disaggregation" for problem in known.problems)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"gateway": {"prefixAware": True}}, "spec.gateway.prefixAware"),
        ({"gateway": {"inferencePool": {"name": "p"}}}, "spec.gateway.inferencePool"),
        ({"engine": {"extraArgs": ["--kv-transfer-config={}"]}}, "spec.engine.extraArgs[0]"),
        ({"model": {**GPU["model"], "configRef": {"name": "c"}}}, "spec.model.configRef"),
        (
            {
                "disaggregation": {
                    "prefill": {"autoscaling": {"maxReplicas": 2, "targetKvUsagePercent": 50}}
                }
            },
            "spec.disaggregation.prefill.autoscaling.targetKvUsagePercent",
        ),
        (
            {
                "autoscaling": {"maxReplicas": 2, "method": "HPA"},
                "disaggregation": {
                    "prefill": {"autoscaling": {"maxReplicas": 2, "method": "KEDA"}}
                },
            },
            "spec.disaggregation.prefill.autoscaling.method",
        ),
        (
            {"disaggregation": {"prefill": {"template": {"spec": {"containers": "none"}}}}},
            "spec.disaggregation.prefill.template",
        ),
        ({"disaggregation": {"prefillFor": "other"}}, "spec.disaggregation.prefillFor"),
    ],
)
def test_what_excludes_roles_is_refused_with_field_and_remedy(
    changes: dict[str, Any], field: str
) -> None:
    told = considered(**{**DIVIDED, **changes}).problems
    found = [str(problem) for problem in told if problem.field.startswith(field)]
    assert found, told
    assert any(word in found[0] for word in ("leave", "give", "set", "scale", "must be"))


def test_a_role_that_does_not_fit_is_refused_before_anything_starts() -> None:
    role = {"prefill": {"accelerator": {"memory": "16Mi"}}}
    told = considered(accelerator={"type": "cpu", "memory": "8Gi"}, disaggregation=role).problems
    assert [problem.field for problem in told] == ["spec.disaggregation.prefill"]
    assert told[0].reason in (Reason.WEIGHTS_DO_NOT_FIT, Reason.CONTEXT_DOES_NOT_FIT)


@pytest.mark.parametrize(("length", "canary"), [(32, False), (33, False), (25, True), (26, True)])
def test_names_leave_room_for_those_of_both_roles(length: int, canary: bool) -> None:
    change = {"canary": {"change": {"engine": {"maxNumSeqs": 8}}, "weight": 10}}
    gateway = {"gateway": {"httpRoute": {"parentRefs": [{"name": "gate"}]}}}
    changes = {**DIVIDED, **(change | gateway if canary else {})}
    key = ObjectKey("default", "a" * length)
    found = consider(Owner(key, ""), parsed(**changes), ANYWHERE).problems
    too_long = length in (33, 26)
    assert any("shorter name" in str(each) for each in found) is too_long


def test_the_webhook_refuses_faults_of_a_role() -> None:
    role = {"prefill": {"engine": {"maxNumSeqs": 64, "maxNumBatchedTokens": 8}}}
    (fault,) = faults_of(KEY, {"metadata": {"name": "chat"}, "spec": spec(disaggregation=role)})
    assert str(fault).startswith("spec.disaggregation.prefill: makes spec.engine.maxNumBatched")


# --- what the plan says -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "answer", "prefill", "pays", "words"),
    [
        (8192, 256, 1, True, "pay if even gaps"),
        (100, 200, 1, False, "computed where they are answered"),
        (1024, 4096, 8, False, "do not pay at this size"),
        (32768, 16, 1, True, "times as many prefill devices"),
    ],
)
def test_the_plan_says_whether_separate_pods_pay(
    prompt: int, answer: int, prefill: int, pays: bool, words: str
) -> None:
    roles = {
        "prefill": {"replicas": prefill},
        "traffic": {"promptTokens": prompt, "answerTokens": answer},
    }
    found = considered(**GPU, replicas=1, disaggregation=roles)
    assert found.pair is not None
    assert found.plan is not None
    assert found.pair.verdict.pays is pays, found.pair.verdict
    assert words in found.pair.verdict.words
    warned = any("spec.disaggregation: " in text for text in found.plan.spec.warnings)
    assert warned is not pays


_LONG = {"promptTokens": 9000, "answerTokens": 9}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({**GPU, "disaggregation": {"prefill": {}}}, "give spec.disaggregation.traffic"),
        (
            {
                "disaggregation": {
                    "prefill": {},
                    "traffic": {"promptTokens": 9000, "answerTokens": 9},
                }
            },
            "model or device are unknown",
        ),
    ],
)
def test_the_plan_says_when_it_cannot_tell(changes: dict[str, Any], words: str) -> None:
    found = considered(**changes)
    assert found.pair is not None
    assert found.pair.verdict.pays is None
    assert words in found.pair.verdict.words


def test_the_plan_states_both_roles() -> None:
    decode = plan(**GPU, **DIVIDED)
    assert dict(facts(decode))["role"].startswith("decode: ")
    assert dict(facts(prefill_of(decode)))["role"].startswith("prefill: these pods compute prompts")


# --- autoscalers and networks -------------------------------------------------------------------

_SCALES = {"maxReplicas": 4, "prometheus": {"serverAddress": "http://p:9090"}}


_MEASURES = ("requests_running", "requests_waiting", "kv_cache_usage")


@pytest.mark.parametrize("method", ["KEDA", "HPA"])
def test_prefill_pods_scale_by_waiting_prompts_and_decode_pods_by_their_cache(method: str) -> None:
    scaling = {**_SCALES, "method": method, "typicalContextTokens": 1024}
    decode = plan(**GPU, autoscaling=scaling, disaggregation={"prefill": {"autoscaling": scaling}})
    prefill = prefill_of(decode)
    measures = {}
    for name, planned in (("decode", decode), ("prefill", prefill)):
        wanted = planned.integrations.autoscaling
        assert wanted is not None
        text = json.dumps(autoscaler(planned, wanted))
        measures[name] = {
            word
            for word in ("requests_running", "requests_waiting", "kv_cache_usage")
            if word in text
        }
    assert measures["prefill"] == {"requests_waiting"}
    assert measures["decode"] == {"requests_running", "requests_waiting", "kv_cache_usage"}
    wanted = prefill.integrations.autoscaling
    assert wanted is not None
    step = prefill.engine.scheduler.max_num_batched_tokens
    assert wanted.targets.waiting == step // 1024, "as many prompts as one step computes"


_OVER_TIME = "quantile_over_time(0.9, atom:predicted_{}_seconds"


@pytest.mark.parametrize(
    ("targets", "decode_by", "prefill_by"),
    [
        ({"ttft": "2s", "itl": "50ms"}, {"itl"}, {"ttft"}),
        ({"ttft": "2s"}, set(), {"ttft"}),
        ({"itl": "50ms"}, {"itl"}, set()),
    ],
)
def test_each_role_follows_the_latency_that_it_decides(
    targets: Mapping[str, str], decode_by: set[str], prefill_by: set[str]
) -> None:
    scaling = {**_SCALES, "method": "KEDA"}
    roles = {"prefill": {"autoscaling": scaling}}
    decode = plan(**GPU, slo=targets, autoscaling=scaling, disaggregation=roles)
    for planned, expected in ((decode, decode_by), (prefill_of(decode), prefill_by)):
        wanted = planned.integrations.autoscaling
        assert wanted is not None
        text = json.dumps(autoscaler(planned, wanted))
        assert {name for name in ("ttft", "itl") if _OVER_TIME.format(name) in text} == expected
        numbers = {"requests_waiting"} & {
            word for word in _MEASURES if f"sum(atom:{word}{{" in text
        }
        if not expected:
            assert numbers, "numbers of requests, as without targets"


def test_each_role_reports_its_own_target() -> None:
    late = EngineOutlook(9.0, 0.2, "compute", None, (), ())
    view = EngineView(latencies=Latencies((("pod", late),), None))
    decode = plan(**GPU, slo={"ttft": "2s", "itl": "50ms"}, **DIVIDED)
    answering, computing = (slo_met(each, each, view) for each in (decode, prefill_of(decode)))
    assert answering is not None
    assert answering.message.startswith("decode pods, p90: next token predicted 200 ms of 50 ms")
    assert "first token" not in answering.message
    assert answering.reason is Reason.STEPS_TOO_LONG
    assert computing is not None
    assert computing.message.startswith("prefill pods, p90: first token predicted 9 s of 2 s")
    assert "spec.disaggregation.prefill of chat" in computing.message
    without = plan(**GPU, slo={"ttft": "2s"}, **DIVIDED)
    assert slo_met(without, without, view) is None


_TARGETS = ({}, {"ttft": "2s"}, {"itl": "50ms"}, {"ttft": "2s", "itl": "50ms"})
_SHAPES = tuple({"slo": slo, **shape} for slo in _TARGETS for shape in ({}, DIVIDED))


@pytest.mark.parametrize("asked", [*_SHAPES, None])
@pytest.mark.parametrize("serving", _SHAPES)
def test_targets_are_reported_while_pods_of_another_division_serve(
    asked: Mapping[str, Any] | None, serving: Mapping[str, Any]
) -> None:
    """A rollout between divided and whole pods changes the targets of those that serve."""
    view = EngineView(
        latencies=Latencies((("pod", EngineOutlook(1.0, 0.1, "", None, (), ())),), None)
    )
    wanted = None if asked is None else plan(**GPU, **asked)
    there = plan(**GPU, **serving)
    found = slo_met(wanted, there, view)
    has_own = there.integrations.slo is not None
    if wanted is None:
        assert (found is not None) == has_own, "a rejected spec changes nothing"
    elif not asked["slo"]:
        assert found is None
    elif has_own:
        assert found is not None
        assert found.reason is not Reason.NO_LATENCIES, "serving pods are measured by their own"
    elif wanted.integrations.slo is not None:
        assert found is not None
        assert (found.status, found.reason) == ("Unknown", Reason.NO_LATENCIES)
        assert "of a revision without targets" in found.message
    else:
        assert found is None, "the prefill pods report the only target"


@pytest.mark.parametrize("copies", [1, 4])
def test_only_decode_pods_reach_the_pages_and_only_frontends_the_prompts(copies: int) -> None:
    roles = {"prefill": {"parallelism": {"data": copies}}}
    prefill = prefill_of(plan(site=SITE, **GPU, networkPolicy={}, disaggregation=roles))
    access = prefill.integrations.network
    assert access is not None
    rules = network_policy((prefill,), access)["spec"]["ingress"]
    (pages,) = [rule for rule in rules if rule["ports"][0]["port"] == 5600]
    assert pages["from"] == [
        {
            "podSelector": {
                "matchLabels": {
                    "app.kubernetes.io/name": "atom-engine",
                    "app.kubernetes.io/instance": "chat",
                    "serving.atom.dev/deployment": "chat",
                }
            }
        }
    ]
    assert pages["ports"][0].get("endPort", 5600) == 5600 + copies - 1
    callers = [peer for rule in rules for peer in rule["from"]]
    assert {"podSelector": {}} not in callers, "no client calls a prefill pod"
