"""Canaries in a life: what people ask of one and what becomes of it, and what is promised of it.

Of its own, and drawn by stories of their own: so the lives of all other seeds stay what they were.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atom_operator.domain import ATOM_DEPLOYMENT, POD, Manifest, RequestCounts
from atom_operator.kinds import HTTP_ROUTE
from tests.support.in_memory_cluster.autoscalers import share_of_canary
from tests.support.in_memory_cluster.state import is_ready
from tests.support.operator_life.happenings import GOOD, HAPPENINGS, IMAGES, Kind
from tests.support.operator_life.places import fits_beside
from tests.support.operator_life.promise import promise
from tests.support.operator_life.story import Happening, Story, draw_story

if TYPE_CHECKING:
    from tests.support.operator_life.life import Life

STEPS = [{"weight": 10, "seconds": 120}, {"weight": 40, "seconds": 300}]
WIDE = [{"weight": 20, "seconds": 120}, {"weight": 60, "seconds": 300}]  # the work of several pods
_SHARE = 0.5  # of what happens is about the canary
_PAUSES_SECONDS = (1, 20, 100, 400, 1300)
_GONE_SECONDS = 240.0  # until pods of one that was undone have drained and ended


def ask_for_a_canary(life: Life, image: str, replicas: int | None, judged: bool) -> None:
    """With so many pods, or with as many as its share asks for."""
    asked: dict[str, Any] = {"change": {"engine": {"image": image}}}
    if judged:
        asked["analysis"] = {"maxErrorPercent": 5, "failures": 2}
    sized = {"steps": WIDE} if replicas is None else {"steps": STEPS, "replicas": replicas}
    life.ask(canary={**asked, **sized})


def decide(life: Life, decision: str | None) -> None:
    asked = life.spec.get("canary")
    if asked is not None:
        kept = {name: value for name, value in asked.items() if name != "decision"}
        life.ask(canary={**kept, **({"decision": decision} if decision else {})})


def write_the_change_into_the_spec(life: Life) -> None:
    asked = life.spec.get("canary")
    if asked is not None:
        engine = {**(life.spec.get("engine") or {}), **asked["change"]["engine"]}
        life.ask(canary=None, engine=engine)


def take_the_canary_away(life: Life) -> None:
    life.ask(canary=None)


def let_its_requests_fail(life: Life, failed: int) -> None:
    for pod in canary_pods(life):
        address = (pod.get("status") or {}).get("podIP")
        if address:
            life.operator.engines.requests[address] = RequestCounts(100, failed)


def delete_the_canary_by_hand(life: Life) -> None:
    life.cluster.api.objects.pop((ATOM_DEPLOYMENT, "default", f"{life.name}-canary"), None)


CANARY_HAPPENINGS = {
    "ask_for_a_canary": Kind(ask_for_a_canary, 5, (IMAGES, (1, 2), (True, False))),
    "decide": Kind(decide, 4, (("Promote", "Promote", "Undo", "Hold", None),)),
    "write_the_change_into_the_spec": Kind(write_the_change_into_the_spec, 2, ()),
    "take_the_canary_away": Kind(take_the_canary_away, 1, ()),
    "let_its_requests_fail": Kind(let_its_requests_fail, 2, ((0, 90),)),
    "delete_the_canary_by_hand": Kind(delete_the_canary_by_hand, 1, ()),
}


def draw_canary_story(seed: int) -> Story:
    """Draw a life in which a canary is asked for first, and then anything happens."""
    draw, story = random.Random(seed), draw_story(seed)
    scene = replace(story.scene, route=True)
    first = Happening("ask_for_a_canary", (draw.choice(GOOD), 1, draw.random() < 0.5), 400)
    others = [_draw(draw) if draw.random() < _SHARE else other for other in story.happenings]
    return _sized(Story(scene, (first, *others)), seed)


def _sized(story: Story, seed: int) -> Story:
    """In every second life canaries follow their share, and where it can an autoscaler moves the
    others: by a draw of its own, so that all other lives stay what they were."""
    draw, scene = random.Random(f"sized {seed}"), story.scene
    if draw.random() < 0.5:
        return story
    if not (scene.groups or scene.weights or scene.claim) and draw.random() < 0.6:
        scene = replace(scene, scales=True)
    happenings = [
        replace(one, arguments=(one.arguments[0], None, one.arguments[2]))
        if one.name == "ask_for_a_canary"
        else one
        for one in story.happenings
    ]
    if scene.scales:
        load = Happening("let_the_load_move", (draw.choice((1.5, 2.5, 4.0)),), 400)
        happenings.insert(0, load)
        scene = replace(scene, nodes=scene.nodes + draw.choice((0, 2, 4)))
    return Story(scene, tuple(happenings))


def _draw(draw: random.Random) -> Happening:
    names = list(CANARY_HAPPENINGS)
    name = draw.choices(names, [CANARY_HAPPENINGS[name].weight for name in names])[0]
    arguments = tuple(draw.choice(choices) for choices in CANARY_HAPPENINGS[name].choices)
    return Happening(name, arguments, draw.choice(_PAUSES_SECONDS))


def engine_asked_for(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's part of a spec, with the canary's change where that is to be promoted."""
    canary = spec.get("canary") or {}
    change = canary["change"] if canary.get("decision") == "Promote" else {}
    return {**(spec.get("engine") or {}), **(change.get("engine") or {})}


def canary_pods(life: Life) -> list[Manifest]:
    """Those that hold what they need, also while they end."""
    owner = f"{life.name}-canary"
    return [
        pod
        for pod in life.state.all(POD)
        if (pod["metadata"].get("labels") or {}).get("serving.atom.dev/deployment") == owner
        and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
    ]


def _most(spec: Mapping[str, Any]) -> int:
    """The replicas that an autoscaler may ask for; without one nothing follows the load."""
    return int((spec.get("autoscaling") or {}).get("maxReplicas", 0))


class CanaryPromises:
    """Of one life; each answers with what is broken, or None."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.gone_since: float | None = None
        self.replicas = 0  # of the workload beside it
        self.placed = 0  # those of them that have a node
        self.follows = False  # its share, as it was asked for last

    def broken(self) -> str | None:
        """What is promised when a moment is over."""
        return (
            self._shares()
            or self._shares_are_carried()
            or self._the_others_stay()
            or self._strands_nothing()
        )

    @promise("canary-shares-are-whole", "canary-serves-before-it-is-asked")
    def _shares(self) -> str | None:
        """Requests go in whole, and to a canary only while all of its pods serve."""
        route = self.life.cluster.api.objects.get((HTTP_ROUTE, "default", self.life.name))
        for rule in route["spec"]["rules"] if route else ():
            weights: dict[str, Any] = {to["name"]: to.get("weight") for to in rule["backendRefs"]}
            share = weights.get(f"{self.life.name}-canary")
            if len(weights) > 1 and sum(weights.values()) != 100:
                return f"the shares of a route are {weights}"
            serving = [pod for pod in canary_pods(self.life) if is_ready(pod)]
            if share and not serving and not self._is_just_lost():
                return f"a canary takes {share}% of the requests, and no pod of it serves"
        return None

    @promise("canary-carries-its-share")
    def _shares_are_carried(self) -> str | None:
        """No pod of one that follows its share has more work than a pod beside it would have
        without a canary."""
        share, beside = share_of_canary(self.life.state, self.life.name), self._beside()
        if asked := self.life.spec.get("canary"):
            self.follows = "replicas" not in asked
        ready = sum(map(is_ready, canary_pods(self.life)))
        if not self.follows or share * beside <= 100 * ready or self._is_just_lost():
            return None
        return f"a canary takes {share}% of the requests of {beside} replicas, and {ready} serve"

    @promise("others-stay-beside-a-canary")
    def _the_others_stay(self) -> str | None:
        """No autoscaler takes a pod that the requests of a canary need when it is undone. A replica
        that had no node is no such pod: an autoscaler asks for no more than find a place."""
        before, self.replicas = self.replicas, self._beside()
        placed, self.placed = self.placed, self._placed()
        load = self.life.state.load.get(self.life.name, 0.0)
        needed = min(before, placed, math.ceil(load), _most(self.life.spec))
        takes = share_of_canary(self.life.state, self.life.name)
        if not takes or self.life.promises.touched or self.replicas >= needed:
            return None
        if not self._finds_a_place():
            return None  # a rollout gave the place of one up, which its successor may not take
        return f"{self.replicas} of {before} replicas stay beside a canary, at a load of {load}"

    def _beside(self) -> int:
        workload = self.life.workload
        return int(workload["spec"].get("replicas", 1)) if workload else 0

    def _placed(self) -> int:
        """Count pods beside a canary that have a node which the cluster hears of."""
        homes = (pod["spec"].get("nodeName") for pod in self.life.pods)
        return sum(home is not None and home not in self.life.state.lost for home in homes)

    def _finds_a_place(self) -> bool:
        """Return whether one more pod beside a canary would start once those that end have gone,
        and those that wait have taken their places."""
        workload, state = self.life.workload, self.life.state
        ending = [pod for pod in state.all(POD) if pod["metadata"].get("deletionTimestamp")]
        waiting = [pod for pod in self.life.pods if not pod["spec"].get("nodeName")]
        own = filter(self.life.is_own, ending)
        return workload is not None and fits_beside(state, workload, waiting, own)

    def _is_just_lost(self) -> bool:
        """Whether its nodes have gone: what they run is called ready until the cluster knows."""
        pods = canary_pods(self.life)
        return any(pod["spec"].get("nodeName") in self.life.state.lost for pod in pods)

    @promise("undone-canary-has-no-pods")
    def _strands_nothing(self) -> str | None:
        """One that is promoted, undone or not asked for has no pods, some moments later. Those on a
        lost node end when it is back."""
        parent, time = self.life.parent, self.life.state.time
        status = ((parent or {}).get("status") or {}).get("canary") or {}
        goes_on = status.get("phase") not in (None, "Promoted", "Undone")
        if goes_on or self.life.state.lost or not canary_pods(self.life):
            self.gone_since = None
            return None
        self.gone_since = time if self.gone_since is None else self.gone_since
        self.life.state.look_after(self.gone_since + _GONE_SECONDS + 1 - time)
        if time - self.gone_since <= _GONE_SECONDS:
            return None
        return f"a canary that is {status.get('phase', 'not asked for')} has pods still"


HAPPENINGS.update({name: replace(kind, weight=0) for name, kind in CANARY_HAPPENINGS.items()})
