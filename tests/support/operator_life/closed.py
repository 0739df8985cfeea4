"""Windows and turns in a life: rollouts that may not begin yet, beside all else that happens.

Of its own, and drawn by stories of their own, on top of those of all other kinds of lives: so
windows and turns meet roles, canaries, profiles, default images, routes and operators that die.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from atom_operator.domain import Manifest, ObjectKey
from atom_operator.reconcile.rollout_train import RolloutTrain
from tests.support.in_memory_cluster.state import is_ready
from tests.support.operator_life.canaries import draw_canary_story
from tests.support.operator_life.groups import leader_of
from tests.support.operator_life.happenings import HAPPENINGS, Kind
from tests.support.operator_life.pairs import draw_pair_story, prefill_name
from tests.support.operator_life.promise import promise
from tests.support.operator_life.story import Happening, Story, draw_story
from tests.support.operator_life.wider import draw_wider_story

if TYPE_CHECKING:
    from tests.support.operator_life.life import Life

_SHARE = 0.25  # of what happens is about windows and turns
_PAUSES_SECONDS = (1, 20, 100, 400, 1300)
_OTHER = ObjectKey("default", "other")
_REVISION = "serving.atom.dev/revision"
_FAILED = "serving.atom.dev/failed-revision"
_DAY_SECONDS = 86_400.0
_GROUP_SIZE = 2


def ask_for_a_window(life: Life, opens_in_minutes: int | None, minutes: int) -> None:
    """Ask for rollouts in a window that opens then, or has opened; without minutes for none."""
    rollout = {name: value for name, value in life.spec["rollout"].items() if name != "window"}
    if opens_in_minutes is not None:
        opens = life.state.now() + timedelta(minutes=opens_in_minutes)
        rollout["window"] = {"start": f"{opens:%H:%M}", "minutes": minutes}
    life.ask(rollout=rollout)


def let_others_hold_the_turn(life: Life) -> None:
    """Let another AtomDeployment roll out, until it is done or another operator begins."""
    train: RolloutTrain = life.operator.reconciler.memories.train
    train.take(_OTHER)
    life.promises.closed.held_by = train


def let_others_give_the_turn_back(life: Life) -> None:
    life.operator.reconciler.memories.train.forget(_OTHER)
    life.promises.closed.held_by = None


CLOSED_HAPPENINGS = {
    "ask_for_a_window": Kind(ask_for_a_window, 4, ((-5, 5, 20, 600, None), (10, 60))),
    "let_others_hold_the_turn": Kind(let_others_hold_the_turn, 3, ()),
    "let_others_give_the_turn_back": Kind(let_others_give_the_turn_back, 2, ()),
}
_BENEATH = (draw_story, draw_canary_story, draw_wider_story, draw_pair_story, draw_pair_story)


def draw_closed_story(seed: int) -> Story:
    """Draw a life of another kind in which rollouts wait from its first moments, or from later."""
    draw = random.Random(f"closed {seed}")
    story = draw.choice(_BENEATH)(seed)
    happenings = [_draw(draw) if draw.random() < _SHARE else other for other in story.happenings]
    happenings.insert(draw.choice((0, 0, 1, 2)), _draw(draw))
    return replace(story, happenings=tuple(happenings))


def _draw(draw: random.Random) -> Happening:
    names = list(CLOSED_HAPPENINGS)
    name = draw.choices(names, [CLOSED_HAPPENINGS[name].weight for name in names])[0]
    arguments = tuple(draw.choice(choices) for choices in CLOSED_HAPPENINGS[name].choices)
    return Happening(name, arguments, draw.choice(_PAUSES_SECONDS))


class ClosedPromises:
    """Of one life; `broken` answers with what is broken, or None."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.held_by: RolloutTrain | None = None
        self.revisions: dict[str, str] = {}  # that the workloads of both roles ask for
        self.has_begun = False  # a rollout, which goes on
        self.awaits_decode = False  # prefill pods of it have come, and decode pods follow

    @property
    def is_closed(self) -> bool:
        """Return whether no rollout may begin, by the clock of the cluster and by others."""
        asked = (self.life.spec.get("rollout") or {}).get("window")
        if self.held_by is not None:
            if self.held_by is self.life.operator.reconciler.memories.train:
                return True
            self.held_by = None  # another operator has begun
        if asked is None:
            return False
        hours, minutes = map(int, asked["start"].split(":"))
        now = self.life.state.now()
        start = now.replace(hour=hours, minute=minutes, second=0, microsecond=0)
        return (now - start).total_seconds() % _DAY_SECONDS >= asked["minutes"] * 60

    @promise("closed-windows-keep-pods")
    def broken(self) -> str | None:
        """Serving pods are not replaced while no rollout may begin; one that has begun goes on."""
        prefill, life = prefill_name(self.life), self.life
        before = self.revisions.get(prefill)
        changed = [name for name in (life.name, prefill) if self._is_replaced(name)]
        closed = self.is_closed
        if self._is_at_rest() and not self.awaits_decode:
            self.has_begun = False
        if self.revisions.get(prefill) not in (None, before):
            self.has_begun = self.has_begun or before is None
            self.awaits_decode = True
        if life.name in changed or "disaggregation" not in life.spec:
            self.awaits_decode = False
        if not changed:
            return None
        begun, self.has_begun = self.has_begun, True
        if not closed or begun or life.promises.touched:
            return None
        return f"pods of {' and '.join(changed)} that serve are replaced while no rollout may begin"

    def _is_replaced(self, name: str) -> bool:
        """Whether a workload asks for another revision than that of all pods of it that serve."""
        workload = self.life.workload_of(name)
        notes = (workload or {"metadata": {}})["metadata"].get("annotations") or {}
        now, before = notes.get(_REVISION), self.revisions.get(name)
        self.revisions[name] = now
        if now in (None, before) or before is None or _FAILED in notes:
            return False
        return {_revision(pod) for pod in self._serving(name)} == {before}

    def _serving(self, name: str) -> list[Manifest]:
        """Return the pods that are ready; of a group none while one of it is not: it serves as a
        whole."""
        ready = [pod for pod in self.life.pods_of(name) if is_ready(pod)]
        found = Counter(map(leader_of, ready))
        return [
            pod for pod in ready if leader_of(pod) is None or found[leader_of(pod)] == _GROUP_SIZE
        ]

    def _is_at_rest(self) -> bool:
        """Whether every pod of both roles is of the revision that its workload asks for."""
        names = (self.life.name, prefill_name(self.life))
        return all(
            is_ready(pod) and _revision(pod) == self.revisions.get(name)
            for name in names
            for pod in self.life.pods_of(name)
        )


def _revision(pod: Manifest) -> str | None:
    found: str | None = (pod["metadata"].get("annotations") or {}).get(_REVISION)
    return found


HAPPENINGS.update({name: replace(kind, weight=0) for name, kind in CLOSED_HAPPENINGS.items()})
