"""Prefill and decode pods in a life: what people ask of the roles, and what is promised of a pair.

Of its own, and drawn by stories of their own, on top of those of all other kinds of lives: so the
roles meet canaries, profiles, quotas, autoscalers, edits and operators that die.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atom_operator.domain import ATOM_DEPLOYMENT, POD, SERVICE, Manifest
from tests.support.in_memory_cluster.state import is_ready, is_terminal
from tests.support.operator_life.canaries import draw_canary_story
from tests.support.operator_life.happenings import HAPPENINGS, IMAGES, Kind
from tests.support.operator_life.promise import promise
from tests.support.operator_life.story import Happening, Scene, Story, draw_story
from tests.support.operator_life.wider import draw_wider_story

if TYPE_CHECKING:
    from tests.support.operator_life.life import Life

_SHARE = 0.4  # of what happens is about the roles
_PAUSES_SECONDS = (1, 20, 100, 400, 1300)
_GONE_SECONDS = 240.0  # until pods of a role that is not asked for have drained and ended
_REVISION = "serving.atom.dev/revision"
_FAILED = "serving.atom.dev/failed-revision"
_SHOWN = ("--model", "--max-model-len", "--block-size")


def ask_for_roles(life: Life, replicas: int, copies: int) -> None:
    """Ask for prefill pods with this many copies of the model each; a copy takes one device."""
    role: dict[str, Any] = {"replicas": replicas}
    if copies > 1 and life.scene.devices:
        role["parallelism"] = {"data": copies}
    life.ask(disaggregation={"prefill": role})


def ask_for_whole_pods(life: Life) -> None:
    life.ask(disaggregation=None)


def change_the_prefill_role(life: Life, sequences: int | None) -> None:
    """Change the options of the prefill pods alone."""
    asked = life.spec.get("disaggregation")
    if asked is not None:
        role = {**asked["prefill"], "engine": {"maxNumSeqs": sequences}}
        role = role if sequences else {k: v for k, v in role.items() if k != "engine"}
        life.ask(disaggregation={**asked, "prefill": role})


def spoil_the_decode_role(life: Life, image: str) -> None:
    """Give the decode pods another image than the prefill pods, which may not start."""
    asked = life.spec.get("disaggregation")
    if asked is not None:
        engine = {"name": "engine", "image": image}
        template = {**(life.spec.get("template") or {}), "spec": {"containers": [engine]}}
        life.ask(disaggregation={**asked, "decode": {"template": template}})


def delete_the_prefill_pods_by_hand(life: Life) -> None:
    life.cluster.api.objects.pop((ATOM_DEPLOYMENT, "default", prefill_name(life)), None)


PAIR_HAPPENINGS = {
    "ask_for_roles": Kind(ask_for_roles, 4, ((0, 1, 2), (1, 2, 4))),
    "ask_for_whole_pods": Kind(ask_for_whole_pods, 2, ()),
    "change_the_prefill_role": Kind(change_the_prefill_role, 3, ((8, 16, None),)),
    "spoil_the_decode_role": Kind(spoil_the_decode_role, 1, (IMAGES,)),
    "delete_the_prefill_pods_by_hand": Kind(delete_the_prefill_pods_by_hand, 1, ()),
}
_BENEATH = (draw_story, draw_canary_story, draw_wider_story)


def draw_pair_story(seed: int) -> Story:
    """Draw a life of another kind in which pods are divided first, or while they serve."""
    draw = random.Random(f"pair {seed}")
    story = draw.choice(_BENEATH)(seed)
    happenings = [_draw(draw) if draw.random() < _SHARE else other for other in story.happenings]
    roles = Happening("ask_for_roles", (draw.choice((1, 1, 2)), 1), draw.choice((20, 400)))
    happenings.insert(draw.choice((0, 0, 1)), roles)
    return Story(_divisible(story.scene), tuple(happenings))


def _divisible(scene: Scene) -> Scene:
    """Change what excludes roles: ranks and groups, which the engine refuses, and claims that the
    pods of one role mount alone. A prefill pod has a place beside the others."""
    devices = 1 if scene.devices else 0
    claim = scene.claim if scene.claim in ("", "zone") else ""
    nodes = min(8, scene.nodes + (4 if claim else 2))
    own = replace(scene, devices=devices, groups=False, claim=claim, nodes=nodes)
    return replace(own, hugepages=False)  # of which a node has those of one pod


def _draw(draw: random.Random) -> Happening:
    names = list(PAIR_HAPPENINGS)
    name = draw.choices(names, [PAIR_HAPPENINGS[name].weight for name in names])[0]
    arguments = tuple(draw.choice(choices) for choices in PAIR_HAPPENINGS[name].choices)
    return Happening(name, arguments, draw.choice(_PAUSES_SECONDS))


def prefill_name(life: Life) -> str:
    return "-".join((life.name, "prefill"))


def prefill_pods(life: Life) -> list[Manifest]:
    """Return the prefill pods that hold devices, also while they end."""
    owner = prefill_name(life)
    return [
        pod
        for pod in life.state.all(POD)
        if (pod["metadata"].get("labels") or {}).get("serving.atom.dev/deployment") == owner
        and not is_terminal(pod)
    ]


def _shown(pod_spec: Manifest) -> tuple[Any, ...]:
    """Return the image, and the options that decide a page: both roles have them alike."""
    (engine,) = [item for item in pod_spec["containers"] if item["name"] == "engine"]
    args = engine["args"]
    found = [args[args.index(flag) + 1] if flag in args else None for flag in _SHOWN]
    return (engine["image"], *found)


class PairPromises:
    """Check the promises of one life; each method returns the broken promise, or None."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.gone_since: float | None = None
        self.revision: str | None = None  # of the decode pods that the workload asks for
        self.before: dict[str, Manifest] = {}  # pods of both roles that served
        self.was_divided = False

    @property
    def is_divided(self) -> bool:
        return "disaggregation" in self.life.spec and not self.life.spec.get("suspend")

    def watch(self) -> str | None:
        """Check the promises of every round."""
        return self._prefill_goes_first() or self._one_role_serves()

    def broken(self) -> str | None:
        """Check the promises at the end of a moment."""
        return self._strands_nothing()

    @property
    def is_as_asked(self) -> bool:
        """Return whether all prefill pods are there, by their own status, and old ones have ended:
        decode pods change after these."""
        if not self.is_divided:
            return self.prefill is None
        there = {pod["metadata"]["uid"] for pod in self.life.pods_of(prefill_name(self.life))}
        if any(pod["metadata"]["uid"] not in there for pod in prefill_pods(self.life)):
            return False
        workers = (SERVICE, "default", f"{self.life.name}-workers")
        is_silent = SERVICE.kind in self.life.state.silent_policy
        if is_silent and workers not in self.life.cluster.api.objects:
            return False  # the policy prevents its creation now
        status = (self.prefill or {}).get("status") or {}
        generation = ((self.prefill or {}).get("metadata") or {}).get("generation")
        ready = [item for item in status.get("conditions") or () if item["type"] == "Ready"]
        is_told = status.get("observedGeneration") == generation
        return is_told and bool(ready) and ready[0]["status"] == "True"

    @property
    def prefill(self) -> Manifest | None:
        name = prefill_name(self.life)
        return self.life.cluster.api.objects.get((ATOM_DEPLOYMENT, "default", name))

    @promise("prefill-pods-go-first")
    def _prefill_goes_first(self) -> str | None:
        """Decode pods are replaced only when every prefill pod that serves is of their revision."""
        workload = self.life.workload
        if workload is None:
            self.revision = None
            return None
        notes = workload["metadata"].get("annotations") or {}
        before, self.revision = self.revision, notes.get(_REVISION)
        decode = [pod for pod in self.life.pods if is_ready(pod)]
        begins = before not in (None, self.revision) and decode and _FAILED not in notes
        if not begins or not self.is_divided or self.life.promises.touched:
            return None
        if all(pod["metadata"]["annotations"].get(_REVISION) == self.revision for pod in decode):
            return None  # back to what serves
        wanted = _shown(workload["spec"]["template"]["spec"])
        if "decode" in self.life.spec["disaggregation"]:
            return None  # the roles are asked to differ
        there = self.life.pods_of(prefill_name(self.life))
        others = {_shown(pod["spec"]) for pod in there if is_ready(pod)}
        if others <= {wanted}:
            return None
        return f"decode pods become {wanted} beside prefill pods of {others}"

    @promise("one-role-serves")
    def _one_role_serves(self) -> str | None:
        """A rollout never stops the pods of both roles: one of them answers. Without prefill pods
        there is one role, whose rollouts other promises judge."""
        life = self.life
        asked = (life.spec.get("disaggregation") or {}).get("prefill") or {}
        prefill = filter(is_ready, life.pods_of(prefill_name(life)))
        pods = [*life.cluster.serving(life.name), *prefill]
        now = {pod["metadata"]["uid"]: pod for pod in pods}
        before, self.before = self.before, now
        divided, self.was_divided = self.was_divided, self.is_divided and self.is_as_asked
        if now or not before or not divided or not self.is_divided:
            return None
        if life.promises.touched or not life.spec.get("replicas", 1):
            return None
        if not asked.get("replicas", 1):
            return None
        ours = [pod for pod in before.values() if not life.promises.is_others_doing(pod)]
        return f"no pod of either role serves, and {len(ours)} did" if ours else None

    @promise("undivided-has-no-prefill-pods")
    def _strands_nothing(self) -> str | None:
        """Without the field there are no prefill pods, some moments after it was carried out. Those
        on a lost node end when it is back."""
        life, time = self.life, self.life.state.time
        status = (life.parent or {}).get("status") or {}
        asked = "disaggregation" in life.spec or self.prefill is not None
        if asked or life.state.lost or not prefill_pods(life) or not status:
            self.gone_since = None
            return None
        self.gone_since = time if self.gone_since is None else self.gone_since
        life.state.look_after(self.gone_since + _GONE_SECONDS + 1 - time)
        if time - self.gone_since <= _GONE_SECONDS:
            return None
        return "no roles are asked for, and prefill pods are there still"

    @promise("faults-leave-nothing-behind")
    def at_the_end(self) -> str | None:
        """Both roles serve the newest spec when no disturbance is left."""
        if not self.is_divided:
            return None if self.prefill is None else "prefill pods stay at the end"
        if not self.is_as_asked:
            return f"at the end the prefill pods say {(self.prefill or {}).get('status')}"
        shown = {_shown(pod["spec"]) for pod in (*prefill_pods(self.life), *self.life.pods)}
        return None if len(shown) == 1 else f"at the end the roles are of {shown}"


HAPPENINGS.update({name: replace(kind, weight=0) for name, kind in PAIR_HAPPENINGS.items()})
