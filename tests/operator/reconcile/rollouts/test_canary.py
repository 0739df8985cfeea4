"""spec.canary: a share of the requests goes to another revision, step by step, until somebody
decides or it fails."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from atom_operator.constants import LABEL_DEPLOYMENT
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    DEPLOYMENT,
    POD,
    SERVICE,
    Manifest,
    ObjectKey,
    RequestCounts,
)
from atom_operator.kinds import HTTP_ROUTE
from tests.support.cluster.gateways import says, take_up_route
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    NOW,
    cluster_with,
    condition,
    reconciler,
)
from tests.support.operator.fake_engines import FakeEngines

CANARY = ObjectKey("default", "chat-canary")
ROUTE: dict[str, Any] = {"httpRoute": {"parentRefs": [{"name": "gate"}]}}
CHANGE: dict[str, Any] = {"engine": {"image": "registry.test/atom:2"}}
KNOWN = {"chat": 100, "chat-canary": 0}  # to the Gateway, without requests
STEPS = [{"weight": 5, "seconds": 60}, {"weight": 50, "seconds": 600}]
MINUTE = timedelta(minutes=1)


class Story:
    """An AtomDeployment `chat` with a canary, and an operator that looks as time passes."""

    def __init__(self, canary: dict[str, Any], **changes: Any) -> None:
        self.now, self.engines = NOW, FakeEngines()
        self.again: dict[ObjectKey, float | None] = {}  # seconds until each wants to be looked at
        self.cluster = cluster_with(gateway=ROUTE, replicas=2, **changes)
        self.look()
        finish_rollout(self.cluster)
        self.look()
        self.ask(canary)

    def ask(self, canary: dict[str, Any] | None, **changes: Any) -> None:
        """Another spec.canary; None takes it away."""
        stored = self.cluster.find(ATOM_DEPLOYMENT, "chat")
        stored["spec"].pop("canary", None)
        self.cluster.change_spec(
            ATOM_DEPLOYMENT, "chat", **({"canary": canary} if canary else {}), **changes
        )
        self.look()

    def decide(self, decision: str | None) -> None:
        canary = {**self.cluster.find(ATOM_DEPLOYMENT, "chat")["spec"]["canary"]}
        canary.pop("decision", None)
        self.ask({**canary, **({"decision": decision} if decision else {})})

    def look(self, *, after: timedelta = timedelta()) -> None:
        """Both AtomDeployments are looked at, twice: each is told of the other."""
        self.now += after
        for _ in range(2):
            for key in (KEY, CANARY):
                if (ATOM_DEPLOYMENT, *key) in self.cluster.objects:
                    one = reconciler(self.cluster, self.now, engines=self.engines)
                    self.again[key] = asyncio.run(one.reconcile(key)).requeue_after_seconds
        self.collect()

    def collect(self) -> None:
        """What is owned by something that is gone goes, too."""
        while True:
            uids = {item["metadata"].get("uid") for item in self.cluster.objects.values()}
            gone = [
                key
                for key, item in self.cluster.objects.items()
                if (owners := item["metadata"].get("ownerReferences"))
                and not any(owner["uid"] in uids for owner in owners)
            ]
            if not gone:
                return
            for key in gone:
                del self.cluster.objects[key]

    def serve(self) -> None:
        """The canary's pods become ready."""
        finish_rollout(self.cluster, "chat-canary")
        self.look()

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.cluster.find(ATOM_DEPLOYMENT, "chat")["status"].get("canary") or {})

    @property
    def shares(self) -> dict[str, int | None]:
        """The weight of each Service that the route leads to."""
        rules = self.cluster.find(HTTP_ROUTE, "chat")["spec"]["rules"]
        found = [[(to["name"], to.get("weight")) for to in rule["backendRefs"]] for rule in rules]
        assert all(each == found[0] for each in found)
        return dict(found[0])

    @property
    def pods(self) -> int:
        """Of the canary."""
        return sum(
            kind == POD and item["metadata"]["labels"].get(LABEL_DEPLOYMENT) == "chat-canary"
            for (kind, _, _), item in self.cluster.objects.items()
        )

    def image(self, name: str = "chat") -> str:
        template = self.cluster.find(DEPLOYMENT, name)["spec"]["template"]
        return str(template["spec"]["containers"][0]["image"])


def a_canary(**changes: Any) -> dict[str, Any]:
    return {"change": CHANGE, "steps": STEPS, **changes}


def serving(canary: dict[str, Any] | None = None, **changes: Any) -> Story:
    story = Story(canary or a_canary(), **changes)
    story.serve()
    return story


def said(story: Story) -> tuple[str, str]:
    found = condition(story.cluster, "CanaryProgressing")
    return found["reason"], found["message"]


def test_it_has_what_any_deployment_has_and_takes_no_request_before_it_serves() -> None:
    story = Story(a_canary(replicas=3))
    assert story.shares == KNOWN
    assert said(story)[0] == "CanaryStarting"
    assert story.image("chat-canary") == "registry.test/atom:2" != story.image()
    assert story.cluster.find(DEPLOYMENT, "chat-canary")["spec"]["replicas"] == 3
    assert (
        story.cluster.find(SERVICE, "chat-canary")["spec"]["selector"]
        != (story.cluster.find(SERVICE, "chat")["spec"]["selector"])
    )
    story.serve()
    assert story.shares == {"chat": 95, "chat-canary": 5}


def test_it_takes_no_request_before_the_gateway_knows_its_service() -> None:
    """A proxy that hears of both at once answers its first requests with 503."""
    story = Story(a_canary())
    route = story.cluster.find(HTTP_ROUTE, "chat")
    before = route["metadata"]["generation"] - 1
    assert story.shares == KNOWN
    says_of_version(story, before)
    story.serve()
    assert story.shares == KNOWN
    reason, message = said(story)
    assert reason == "CanaryStarting"
    assert "controller has not taken up the route with its Service yet" in message
    says_of_version(story, before + 1)
    story.look()
    assert story.shares == {"chat": 95, "chat-canary": 5}
    # That the controller has not seen this share yet takes none away.
    story.look(after=2 * MINUTE)
    assert story.shares == {"chat": 50, "chat-canary": 50}


def says_of_version(story: Story, generation: int) -> None:
    """A controller is content with this version of the route."""
    kinds = ("Accepted", "ResolvedRefs")
    words = [says(kind, "True", kind, "", observedGeneration=generation) for kind in kinds]
    take_up_route(story.cluster, "chat", *words)


def test_it_goes_step_by_step_and_then_waits_for_a_person() -> None:
    story = serving()
    story.look(after=MINUTE / 2)
    assert story.shares["chat-canary"] == 5
    assert (story.again[KEY] or 999) <= 30  # when the step is over
    story.look(after=MINUTE)
    assert story.shares == {"chat": 50, "chat-canary": 50}
    story.look(after=20 * MINUTE)
    reason, message = said(story)
    assert reason == "AwaitingPromotion"
    assert "step 2 of 2, chat-canary takes 50% of the requests" in message
    written = len(story.cluster.writes)
    story.look(after=MINUTE)
    assert len(story.cluster.writes) == written  # at rest nothing is written


def test_a_promotion_keeps_the_share_until_all_pods_are_what_it_is() -> None:
    story = serving()
    story.decide("Promote")
    assert said(story)[0] == "Promoting"
    assert story.image() == "registry.test/atom:2"
    assert story.shares["chat-canary"] == 5
    finish_rollout(story.cluster)
    story.look()
    story.look()
    assert said(story)[0] == "Promoted"
    assert story.shares == {"chat": None}
    story.look()
    assert not story.pods
    # Who writes it into the spec restarts nothing.
    revision = story.cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["revision"]
    story.ask(None, engine={"image": "registry.test/atom:2"})
    assert story.cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["revision"] == revision


def test_a_change_that_is_written_into_the_spec_is_a_promotion() -> None:
    story = serving()
    story.ask(None, engine={"image": "registry.test/atom:2"})
    assert said(story)[0] == "Promoting"
    assert story.shares["chat-canary"] == 5
    finish_rollout(story.cluster)
    story.look()
    assert (story.again[KEY] or 999) <= 30  # the end of the rollout is no event of its own
    story.look()
    assert said(story)[0] == "Absent"
    assert not story.status
    assert not story.pods


@pytest.mark.parametrize("decision", ["Undo", None])
def test_who_undoes_it_has_its_pods_gone(decision: str | None) -> None:
    story = serving()
    if decision:
        story.decide(decision)
    else:
        story.ask(None)
    assert story.shares == {"chat": None}
    assert not story.pods
    assert "chat-canary" not in story.cluster.names(DEPLOYMENT)
    assert story.image() == "registry.test/atom:cpu"


@pytest.mark.parametrize("decision", ["Undo", None])
def test_it_goes_after_the_route_was_seen_without_it(decision: str | None) -> None:
    """A Gateway that hears of both at once may send a request to what is gone."""
    story = serving()
    asked = a_canary(decision=decision) if decision else None
    story.cluster.find(ATOM_DEPLOYMENT, "chat")["spec"].pop("canary")
    story.cluster.change_spec(ATOM_DEPLOYMENT, "chat", **({"canary": asked} if asked else {}))

    def look_once() -> None:
        asyncio.run(reconciler(story.cluster, story.now, engines=story.engines).reconcile(KEY))
        story.collect()

    look_once()
    assert story.shares == {"chat": None}
    assert story.pods
    assert "chat-canary" in story.cluster.names(SERVICE)
    look_once()
    assert not story.pods
    assert "chat-canary" not in story.cluster.names(SERVICE)


def test_one_that_is_held_keeps_its_share_and_its_step_begins_anew() -> None:
    story = serving()
    story.decide("Hold")
    story.look(after=60 * MINUTE)
    assert said(story)[0] == "CanaryHeld"
    assert story.shares["chat-canary"] == 5
    story.decide(None)
    assert story.shares["chat-canary"] == 5
    story.look(after=2 * MINUTE)
    assert story.shares["chat-canary"] == 50


def test_one_whose_engines_fail_is_undone_and_not_tried_again_before_it_is_another() -> None:
    story = serving(a_canary(analysis={"maxErrorPercent": 2, "failures": 2}))
    address = story_address(story)
    story.engines.requests[address] = RequestCounts(ended=10, failed=10)
    story.look(after=2 * MINUTE)
    assert "10 of 20 requests" in said(story)[1]  # too few to judge it, or to go on
    assert story.shares["chat-canary"] == 5
    story.engines.requests[address] = RequestCounts(ended=100, failed=10)
    story.look(after=MINUTE)
    story.look()  # no other look in the same minute counts
    assert story.shares["chat-canary"] == 5
    story.look(after=MINUTE)
    reason, message = said(story)
    assert reason == "CanaryUndone"
    assert "10.0% of 100 requests failed, 2% may, 2 times in a row" in message
    assert story.shares == {"chat": None}
    assert not story.pods
    story.look(after=60 * MINUTE)
    assert said(story)[0] == "CanaryUndone"
    story.ask(a_canary(change={"engine": {"image": "registry.test/atom:3"}}))
    assert said(story)[0] == "CanaryStarting"


def story_address(story: Story) -> str:
    (address,) = [
        item["status"]["podIP"]
        for (kind, _, _), item in story.cluster.objects.items()
        if kind == POD and item["metadata"]["labels"].get(LABEL_DEPLOYMENT) == "chat-canary"
    ]
    return str(address)


def test_pods_that_go_lose_their_share() -> None:
    story = serving()
    finish_rollout(story.cluster, "chat-canary", ready=0)
    story.look()
    assert story.shares == KNOWN
    assert said(story)[0] == "CanaryStarting"


def test_what_is_suspended_is_so_with_its_canary() -> None:
    story = serving()
    story.ask(a_canary(), suspend=True)
    finish_rollout(story.cluster, "chat-canary")
    story.look()
    assert not story.pods
    assert story.shares == KNOWN
    story.ask(a_canary(), suspend=False)
    story.serve()
    assert story.shares["chat-canary"] == 5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gateway": None}, "needs a Gateway"),
        ({"gateway": {**ROUTE, "inferencePool": {"name": "mine"}}}, "one pool"),
        ({"canary": a_canary(change={"engine": {"extraArgs": ["--model=x"]}})}, "belongs to the"),
        (
            {"canary": a_canary(analysis={"queries": [{"name": "a", "query": "b", "max": 1}]})},
            "autoscaling.prometheusAddress",
        ),
    ],
)
def test_what_it_cannot_be_without_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    story = Story(a_canary())
    asked = {"canary": a_canary(), "gateway": ROUTE, **changes}
    if asked["gateway"] is None:
        del story.cluster.find(ATOM_DEPLOYMENT, "chat")["spec"]["gateway"]
        del asked["gateway"]
    story.cluster.change_spec(ATOM_DEPLOYMENT, "chat", **asked)
    story.look()
    found = condition(story.cluster, "Accepted")
    assert found["status"] == "False"
    assert "spec.canary" in found["message"]
    assert words in found["message"]


def test_a_spec_that_is_refused_leaves_the_canary_and_its_share_alone() -> None:
    story = serving()
    story.ask(a_canary(), engine={"extraArgs": ["--model=x"]})
    assert condition(story.cluster, "Accepted")["status"] == "False"
    assert story.shares == {"chat": 95, "chat-canary": 5}
    assert story.pods


def test_a_name_that_is_taken_is_left_alone_and_told() -> None:
    story = Story(a_canary())
    story.ask(None)
    mine: Manifest = {
        "metadata": {"name": "chat-canary", "namespace": "default"},
        "spec": {"model": {"source": "path:///mine"}},
    }
    story.cluster.create(ATOM_DEPLOYMENT, mine)
    story.ask(a_canary())
    assert story.cluster.find(ATOM_DEPLOYMENT, "chat-canary")["spec"]["model"]["source"] == (
        "path:///mine"
    )
    assert (
        "chat-canary exists and belongs to something else"
        in (condition(story.cluster, "IntegrationsReady")["message"])
    )
