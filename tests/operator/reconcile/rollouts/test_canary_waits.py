"""What a canary waits for: each wait names its cause, and after a while CanaryProgressing is False;
its steps begin anew only for what a pod would notice."""

from __future__ import annotations

import asyncio
import copy
from datetime import timedelta
from itertools import chain
from typing import Any

import pytest

from atom_operator.canary_spec import canary_spec, pods_digest
from atom_operator.cluster.errors import RefusedError
from atom_operator.constants import LABEL_DEPLOYMENT
from atom_operator.domain import ATOM_DEPLOYMENT, POD, Manifest, RequestCounts
from atom_operator.kinds import HTTP_ROUTE
from atom_operator.plan.canary.known_to_gateway import is_known_to_gateways
from atom_operator.validation.parsing import parse_spec
from tests.operator.reconcile.rollouts.test_canary import CANARY, MINUTE, Story, a_canary
from tests.support.cluster.gateways import says, take_up_route
from tests.support.operator.builders_operator import KEY, condition, reconciler
from tests.support.operator.spec_mutations import Mutation, mutations

LONG = timedelta(minutes=11)


def told(story: Story) -> tuple[str, str, str]:
    found = condition(story.cluster, "CanaryProgressing")
    return found["status"], found["reason"], found["message"]


def is_stalled(story: Story, *words: str) -> None:
    status, reason, message = told(story)
    assert (status, reason) == ("False", "CanaryStalled"), message
    for each in words:
        assert each in message


def is_going_on(story: Story) -> None:
    status, _, message = told(story)
    assert status == "True", message


def test_a_canary_whose_own_spec_is_refused_says_so_at_once() -> None:
    story = Story(a_canary(change={"template": {"spec": {"hostPID": True}}}))
    is_stalled(story, "Accepted=False of chat-canary", "hostPID is not allowed here")
    assert not story.shares.get("chat-canary")
    story.ask(a_canary())
    story.serve()
    is_going_on(story)


def test_a_name_that_is_taken_is_no_progress() -> None:
    story = Story(a_canary())
    story.ask(None)
    mine: Manifest = {
        "metadata": {"name": "chat-canary", "namespace": "default"},
        "spec": {"model": {"source": "path:///mine"}},
    }
    story.cluster.create(ATOM_DEPLOYMENT, mine)
    story.ask(a_canary())
    is_stalled(story, "chat-canary exists and belongs to something else")


def test_a_quota_on_atomdeployments_is_no_progress() -> None:
    words = "exceeded quota: few, requested: count/atomdeployments.serving.atom.dev=1"
    story = Story(a_canary())
    story.ask(None)
    apply = type(story.cluster).apply

    async def refuse(self: Any, kind: Any, manifest: Manifest) -> Manifest:
        if kind == ATOM_DEPLOYMENT:
            raise RefusedError(words, 403)
        return await apply(self, kind, manifest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(story.cluster), "apply", refuse)
        story.ask(a_canary())
        is_stalled(story, words)
    story.look()
    is_going_on(story)


def test_a_gateway_that_never_takes_up_the_route_is_waited_for_ten_minutes() -> None:
    story = Story(a_canary())
    story.serve()
    old = [says("Accepted", "True", "Accepted", "", observedGeneration=0)]
    take_up_route(story.cluster, "chat", *old)
    route = story.cluster.find(HTTP_ROUTE, "chat")
    for rule in route["spec"]["rules"]:
        for backend in rule["backendRefs"]:
            backend["weight"] = 100 if backend["name"] == "chat" else 0
    story.look()
    is_going_on(story)
    story.look(after=LONG)
    is_stalled(story, "has not taken up the route")
    take_up_route(story.cluster)
    story.look()
    is_going_on(story)
    assert story.status["weight"] == 5
    assert "waitingSince" not in story.status


def test_engines_that_do_not_answer_the_operator_are_named() -> None:
    analysis = {"maxErrorPercent": 5, "minRequests": 20}
    story = Story(a_canary(analysis=analysis))
    story.serve()
    is_going_on(story)
    story.look(after=2 * MINUTE)
    is_going_on(story)
    story.look(after=LONG)
    is_stalled(story, "1 of 1 engines do not tell the operator", "NetworkPolicy")
    assert story.status["weight"] == 5
    (address,) = (
        item["status"]["podIP"]
        for (kind, _, _), item in story.cluster.objects.items()
        if kind == POD and item["metadata"]["labels"].get(LABEL_DEPLOYMENT) == "chat-canary"
    )
    story.engines.requests[address] = RequestCounts(100, 0)
    story.look(after=MINUTE)
    is_going_on(story)
    assert story.status["step"] == 2


def test_a_canary_that_loads_within_its_own_deadline_is_progress() -> None:
    story = Story(a_canary())
    story.look(after=3 * MINUTE)
    is_going_on(story)


def test_a_canary_without_a_device_keeps_the_schedulers_words() -> None:
    story = Story(a_canary())
    words = "0/3 nodes are available: 3 Insufficient amd.com/gpu."
    child = story.cluster.find(ATOM_DEPLOYMENT, "chat-canary")
    child["status"]["conditions"] = [
        {"type": kind, "status": status, "reason": reason, "message": message}
        for kind, status, reason, message in (
            ("Accepted", "True", "Valid", ""),
            ("Ready", "False", "NoPodReady", "no pod is ready"),
            ("Scheduled", "False", "Unschedulable", words),
            ("Progressing", "False", "DeadlineExceeded", "x has timed out progressing."),
            ("Degraded", "True", "DeadlineExceeded", "x has timed out progressing."),
        )
    ]
    asyncio.run(reconciler(story.cluster, story.now).reconcile(KEY))
    status, reason, message = told(story)
    assert (status, reason) == ("False", "CanaryUndone")
    assert words in message


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({}, True),
        ({"name": "old-gate"}, True),  # that the route names no more
        ({"namespace": "elsewhere"}, True),
        ({"sectionName": "https"}, True),
        ({"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "default"}, False),
    ],
)
def test_only_gateways_that_the_route_names_are_waited_for(
    changes: dict[str, Any], known: bool
) -> None:
    rule = {"backendRefs": [{"name": "chat", "weight": 100}, {"name": "c", "weight": 0}]}
    fresh, stale = (
        [{"type": "Accepted", "status": "True", "observedGeneration": g}] for g in (4, 1)
    )
    stale_parent = {"parentRef": {"name": "gate", **changes}, "conditions": stale}
    parents = [{"parentRef": {"name": "other"}, "conditions": fresh}, stale_parent]
    if not changes:
        parents[1]["conditions"] = fresh
    route = {
        "metadata": {"name": "chat", "namespace": "default", "generation": 4},
        "spec": {"parentRefs": [{"name": "gate"}, {"name": "other"}], "rules": [rule]},
        "status": {"parents": parents},
    }
    assert is_known_to_gateways(route, "c") is known


def test_other_conditions_of_a_gateway_are_no_verdicts() -> None:
    rule = {"backendRefs": [{"name": "c", "weight": 0}]}
    conditions = [
        {"type": "Accepted", "status": "True", "observedGeneration": 4},
        {"type": "Programmed", "status": "True", "observedGeneration": 1},
    ]
    route = {
        "metadata": {"name": "chat", "namespace": "default", "generation": 4},
        "spec": {"parentRefs": [{"name": "gate"}], "rules": [rule]},
        "status": {"parents": [{"parentRef": {"name": "gate"}, "conditions": conditions}]},
    }
    assert is_known_to_gateways(route, "c")


BASE: dict[str, Any] = {
    "model": {"source": "path:///models/tiny"},
    "accelerator": {"type": "cpu", "memory": "16Gi"},
    "gateway": {"httpRoute": {"parentRefs": [{"name": "gate"}]}},
    "replicas": 2,
    "canary": a_canary(),
}
_OWN = ("canary.", "canary", "gateway", "suspend", "profile")  # judged by their own tests


def _edits() -> list[tuple[Mutation, bool]]:
    """Every edit that a canary can stand beside, and whether a pod of the canary notices it."""
    before = parse_spec(BASE)
    assert not isinstance(before, tuple)
    digest, found = pods_digest(canary_spec(BASE, before)), []
    one_of_each = {mutation.path: mutation for mutation in reversed(mutations())}
    for mutation in one_of_each.values():
        if mutation.path.startswith(_OWN):
            continue
        raw = mutation.of(BASE)
        after = parse_spec(raw)
        if not isinstance(after, tuple):
            found.append((mutation, pods_digest(canary_spec(raw, after)) != digest))
    return found


_SHARES = 16
_PARTS = [0, *(pytest.param(part, marks=pytest.mark.whole) for part in range(1, _SHARES))]


@pytest.mark.parametrize("part", _PARTS)
def test_steps_begin_anew_exactly_for_what_a_pod_notices(part: int) -> None:
    """Every sixteenth field that a pod notices, and every sixteenth that it does not."""
    tried = {True: 0, False: 0}
    edits = _edits()
    chosen = [
        [one for one in edits if one[1] is noticed][part::_SHARES] for noticed in (True, False)
    ]
    for mutation, is_noticed in chain(*chosen):
        story = Story(a_canary())
        story.serve()
        story.look(after=MINUTE / 2)
        before = story.status
        assert before["weight"] == 5, before
        child = copy.deepcopy(story.cluster.find(ATOM_DEPLOYMENT, CANARY.name)["spec"])
        stored = story.cluster.find(ATOM_DEPLOYMENT, "chat")
        stored["spec"] = mutation.of(stored["spec"])
        stored["metadata"]["generation"] += 1
        story.look()
        held_back = ("Accepted", "CapacityFits")
        if any(condition(story.cluster, kind)["status"] == "False" for kind in held_back):
            continue
        if story.cluster.find(ATOM_DEPLOYMENT, CANARY.name)["spec"] == child:
            assert story.status.get("since") == before["since"], (mutation, story.status)
            continue
        begins_anew = story.status.get("since") != before["since"]
        assert begins_anew == is_noticed, mutation
        tried[is_noticed] += 1
    assert min(tried.values()) > 0, tried
