"""Wider lives: rules between pods in the spec's template, a node autoscaler, a foreign autoscaler,
a policy engine that is down, nodes under pressure, and callers by a route's header.

Drawn by stories of their own, so that the lives of all other seeds stay what they were.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from atom_operator.constants import LABEL_DEPLOYMENT, LABEL_LLM_D_ROLE
from atom_operator.domain import DEPLOYMENT, JOB, POD, SERVICE
from atom_operator.kinds import AUTOSCALER, SCALED_OBJECT
from tests.support.operator_life.callers import misled
from tests.support.operator_life.happenings import HAPPENINGS, PRESSURES, Kind
from tests.support.operator_life.others_at_work import ForeignAutoscaler
from tests.support.operator_life.places import fits_a_new_node, old_pods
from tests.support.operator_life.promise import promise
from tests.support.operator_life.story import Happening, Story, Wider, draw_story
from tests.support.operator_life.surroundings import ZONE

if TYPE_CHECKING:
    from tests.support.operator_life.life import Life

_SHARE = 0.4  # of what happens is of here
_PAUSES_SECONDS = (1, 20, 100, 400, 1300)
_HOST = "kubernetes.io/hostname"
_TELL_SECONDS = 300.0  # within which a fight for the number of replicas is told
_NODE_SECONDS = 600.0  # within which a load that is too much brings one more node
_MOST_NODES = 8
_OWN = {"matchLabels": {LABEL_DEPLOYMENT: "chat"}}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_SPREAD = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": _OWN}
RULES: dict[str, Mapping[str, Any]] = {
    "": {},
    "apart by host": {
        "affinity": {
            "podAntiAffinity": {_REQUIRED: [{"labelSelector": _OWN, "topologyKey": _HOST}]}
        }
    },
    "together in a zone": {
        "affinity": {"podAffinity": {_REQUIRED: [{"labelSelector": _OWN, "topologyKey": ZONE}]}}
    },
    "spread over zones": {"topologySpreadConstraints": [{**_SPREAD, "topologyKey": ZONE}]},
    "spread over hosts": {"topologySpreadConstraints": [{**_SPREAD, "topologyKey": _HOST}]},
}


def let_another_autoscaler_fight(life: Life, wanted: int | None) -> None:
    """Let another HorizontalPodAutoscaler want so many replicas; None removes the autoscaler."""
    life.foreign = None
    if wanted is not None and life.workload is not None and not life.scene.groups:
        life.promises.by_hand()
        life.foreign = ForeignAutoscaler(life.cluster, life.name, wanted)


def let_the_policy_engine_be_down(life: Life, kinds: tuple[str, ...]) -> None:
    """Leave its webhook, whose failurePolicy is Fail, without an endpoint."""
    life.state.silent_policy = frozenset(kinds)


def rename_the_model(life: Life, name: str) -> None:
    """Callers ask for it by a header of the route, where there is one."""
    life.ask(model={**life.spec["model"], "servedName": name})


TARGETS: dict[str, Mapping[str, Any]] = {
    "first token": {"ttft": "2s"},
    "next token": {"itl": "50ms", "percentile": 95},
    "both": {"ttft": "800ms", "itl": "40ms", "percentile": 99},
}


def set_targets(life: Life, which: str | None) -> None:
    """Ask for targets of latency, or for none."""
    life.ask(slo=None if which is None else dict(TARGETS[which]))


_ANY = tuple(range(8))
WIDER_HAPPENINGS = {
    "let_another_autoscaler_fight": Kind(let_another_autoscaler_fight, 2, ((1, 3, 5, None),)),
    "let_the_policy_engine_be_down": Kind(
        let_the_policy_engine_be_down,
        3,
        (((POD.kind,), (POD.kind, JOB.kind), (SERVICE.kind, DEPLOYMENT.kind), (), ()),),
    ),
    "rename_the_model": Kind(rename_the_model, 2, (("one", "two"),)),
    "set_targets": Kind(set_targets, 2, ((*TARGETS, None),)),
    "put_a_node_under_pressure": Kind(
        HAPPENINGS["put_a_node_under_pressure"].does, 3, (_ANY, PRESSURES)
    ),
    "lift_the_pressure": Kind(HAPPENINGS["lift_the_pressure"].does, 2, (_ANY,)),
    "ask_for_a_frontend": Kind(HAPPENINGS["ask_for_a_frontend"].does, 2, ((2, 3, None),)),
}


def draw_wider_story(seed: int) -> Story:
    """Draw a life with a rule between pods, what adds nodes, or callers by header, in which what
    is of here happens beside everything else."""
    draw, story = random.Random(f"wider {seed}"), draw_story(seed)
    scene = story.scene
    route = scene.route or (not scene.groups and draw.random() < 0.4)
    wider = Wider(
        rule=draw.choice(tuple(RULES)),
        brings_nodes=not scene.claimed and draw.random() < 0.3,
        by_header=route and draw.random() < 0.7,
    )
    happenings = [_draw(draw) if draw.random() < _SHARE else other for other in story.happenings]
    return Story(replace(scene, route=route, wider=wider), (*happenings, _draw(draw)))


def _draw(draw: random.Random) -> Happening:
    names = list(WIDER_HAPPENINGS)
    name = draw.choices(names, [WIDER_HAPPENINGS[name].weight for name in names])[0]
    arguments = tuple(draw.choice(choices) for choices in WIDER_HAPPENINGS[name].choices)
    return Happening(name, arguments, draw.choice(_PAUSES_SECONDS))


@dataclass
class WiderPromises:
    """Of one life; each answers with what is broken, or None."""

    life: Life
    fought_since: float | None = None
    short: tuple[int, int, int] | None = None  # nodes, replicas and those that serve, of too few
    short_since: float = 0.0

    def broken(self) -> str | None:
        """What is promised when a moment is over."""
        return (
            self._callers_find_their_model()
            or self._a_fight_is_told()
            or self._a_load_brings_its_nodes()
            or self._targets_are_told_and_kept()
        )

    @promise("callers-find-their-model")
    def _callers_find_their_model(self) -> str | None:
        """Requests by the route's header, a frontend or the picker name a model that a pod serves,
        as long as a pod serves one."""
        return next(iter(misled(self.life.cluster, self.life.name)), None)

    @promise("targets-are-reported")
    def _targets_are_told_and_kept(self) -> str | None:
        """Targets of latency have a condition as long as they are asked for, and replicas follow
        them where KEDA or an autoscaler moves them."""
        parent = self.life.parent or {}
        spec, status = parent.get("spec") or {}, parent.get("status") or {}
        seen = status.get("observedGeneration") == parent.get("metadata", {}).get("generation")
        if not seen or _is_kept(status) or not status.get("conditions"):
            return None
        told = {item["type"]: item["status"] for item in status["conditions"]}
        asked = {"ttft", "itl"} & (spec.get("slo") or {}).keys()
        if asked & _elsewhere(spec):
            return None  # the pods before the roles keep it until the prefill pods do
        is_asked = bool(asked - _elsewhere(spec))
        if is_asked != ("SloMet" in told):
            return f"targets are asked for: {is_asked}, and SloMet is {told.get('SloMet')}"
        if "ttft" in asked and self._decode_pods_serve():
            return None  # whole pods are asked for, and those that serve decide no first token
        return self._signal_differs(spec) if "canary" not in spec else None

    def _decode_pods_serve(self) -> bool:
        pods = self.life.cluster.serving(self.life.name)
        return any(LABEL_LLM_D_ROLE in pod["metadata"]["labels"] for pod in pods)

    @promise("targets-are-reported")
    def _signal_differs(self, spec: Mapping[str, Any]) -> str | None:
        """Replicas follow each target that is asked for, and no other. Beside prefill pods, which
        decide the first token, they follow the time between tokens alone."""
        key = ("default", self.life.name)
        for kind in (SCALED_OBJECT, AUTOSCALER):
            found = self.life.cluster.api.objects.get((kind, *key))
            if found is None or not spec.get("autoscaling"):
                continue
            text = repr(found["spec"].get("triggers") or found["spec"].get("metrics") or "")
            for name, target in (("ttft", "predicted_ttft"), ("itl", "predicted_itl")):
                is_asked = name in (spec.get("slo") or {}).keys() - _elsewhere(spec)
                # The count of replicas is that of the pods that predict a first token.
                in_ratio = f"{target}_seconds" in text.replace("count(atom:predicted_ttft", "")
                if is_asked != in_ratio:
                    return (
                        f"a target of {name} is asked for: {is_asked}, and {kind.kind} has it not"
                    )
        return None

    @promise("pending-pods-bring-nodes")
    def _a_load_brings_its_nodes(self) -> str | None:
        """Where something adds nodes for Pending pods, more replicas come as long as the load asks
        for more and a new node would take them: one after the other, each within ten minutes."""
        life, time = self.life, self.life.state.time
        workload = life.workload
        wanted = min(
            math.ceil(life.state.load.get(life.name, 0.0)),
            (life.spec.get("autoscaling") or {}).get("maxReplicas", 0),
        )
        serving = len(life.cluster.serving(life.name))
        if workload is None or serving >= wanted or not self._may_grow(workload):
            self.short = None
            return None
        now = (len(life.nodes), int(workload["spec"].get("replicas", 1)), serving)
        if now != self.short:
            self.short, self.short_since = now, time
        life.state.look_after(self.short_since + _NODE_SECONDS + 1 - time)
        if time - self.short_since <= _NODE_SECONDS:
            return None
        return f"the load asks for {wanted}, and {now} nodes, replicas and serving ones stay"

    def _may_grow(self, workload: Mapping[str, Any]) -> bool:
        """Whether nothing but a node is missing for one more replica."""
        life = self.life
        status = (life.parent or {}).get("status") or {}
        hindered = (
            not life.scene.wider.brings_nodes
            or len(life.nodes) >= _MOST_NODES
            or life.promises.touched
            or life.foreign is not None
            or {"canary", "suspend"} & life.spec.keys()
            or workload["spec"].get("paused")
            or _is_kept(status)
            or old_pods(life, dict(workload))
        )
        return not hindered and fits_a_new_node(life, dict(workload))

    @promise("contested-replicas-are-reported")
    def _a_fight_is_told(self) -> str | None:
        """A condition names the other autoscaler, with the remedy."""
        life, time = self.life, self.life.state.time
        parent = life.parent or {}
        spec, status = parent.get("spec") or {}, parent.get("status") or {}
        fights = (
            life.foreign is not None
            and life.workload is not None
            and not ({"autoscaling"} & spec.keys() or spec.get("suspend"))
            and life.foreign.wanted != spec.get("replicas", 1)
            and not _is_kept(status)
        )
        if not fights:
            self.fought_since = None
            return None
        self.fought_since = time if self.fought_since is None else self.fought_since
        if any("kubectl scale atomd/" in item["message"] for item in status["conditions"]):
            self.fought_since = time  # an operator that begins anew finds it out anew
        if time - self.fought_since <= _TELL_SECONDS:
            return None
        return "somebody sets the replicas again and again, and no condition names it"


def _elsewhere(spec: Mapping[str, Any]) -> set[str]:
    """Return the targets that prefill pods keep, on an object of their own."""
    return {"ttft"} if "disaggregation" in spec else set()


def _is_kept(status: Mapping[str, Any]) -> bool:
    """Return whether the newest spec is refused, so that its number of replicas is no promise."""
    kinds = ("Accepted", "CapacityFits")
    return any(
        item["status"] == "False"
        for item in status.get("conditions") or ()
        if item["type"] in kinds
    )


HAPPENINGS.update(
    {
        name: replace(kind, weight=0)
        for name, kind in WIDER_HAPPENINGS.items()
        if name not in HAPPENINGS
    }
)
