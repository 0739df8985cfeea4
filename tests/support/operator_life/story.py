"""Stories: a scene, and what happens in it, one thing after the other, all from a seed. Pure.

A story that breaks a promise is made shorter until every happening in it is needed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.support.operator_life.happenings import HAPPENINGS, LATER

_LENGTH = (2, 7)
_PAUSES_SECONDS = (1, 20, 100, 400, 1300)

# By what there is little of, with how often each is drawn.
_SCENES = {"cpu": 3, "devices": 4, "memory": 3, "groups": 2, "weights": 3, "claims": 3}
_LATER_SHARE = 0.4  # of lives with a happening of those that came later
_ONE_POD_GIB = 20  # of a node that holds one pod on the CPU


@dataclass(frozen=True, slots=True)
class Wider:
    """What a wider life has beside."""

    rule: str = ""  # between pods, in the spec's template
    brings_nodes: bool = False  # something adds nodes for pods that wait for one
    by_header: bool = False  # callers name the model in a header of the route


@dataclass(frozen=True, slots=True)
class Scene:
    """What there is at first. `devices` 0 is a model on the CPU; `nodes` by what they hold."""

    devices: int
    nodes: int
    replicas: int
    per_pod_gib: int | None  # memory that a pod asks for; the engine's own where None
    node_gib: int
    scales: bool = False
    keda: bool = False
    groups: bool = False  # a replica is two pods
    weights: bool = False  # fetched into a claim by a Job
    gitops: bool = False
    claim: str = ""  # that pods mount: of one "zone", of one "node" or of one "pod"
    hugepages: bool = False  # of which a node has those of one pod
    route: bool = False  # by which callers come
    claimed: bool = False  # devices, from a DRA driver instead of a device plugin
    wider: Wider = Wider()


@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that happens, and how long the cluster lives on before the next."""

    name: str
    arguments: tuple[Any, ...]
    seconds: int


@dataclass(frozen=True, slots=True)
class Story:
    scene: Scene
    happenings: tuple[Happening, ...]


def draw_story(seed: int) -> Story:
    draw = random.Random(seed)
    scene = _draw_scene(draw)
    # By a draw of its own, so that every other life stays what it was.
    claimed = bool(scene.devices) and random.Random(f"claimed {seed}").random() < 0.35
    scene = replace(scene, claimed=claimed)
    count = draw.randint(*_LENGTH)
    happenings = [_draw_happening(draw) for _ in range(count)]
    later = random.Random(f"later {seed}")
    scene = _crowded(scene, later)
    if later.random() < _LATER_SHARE:
        happenings.insert(later.randint(0, count), _draw_later(later))
    return Story(scene, tuple(happenings))


def _crowded(scene: Scene, draw: random.Random) -> Scene:
    """One or two replicas more than there may be places for, in every second life that may have
    them."""
    more = draw.choice((0, 0, 1, 2))
    if scene.claim or scene.weights or scene.scales:
        return scene
    return replace(scene, replicas=scene.replicas + more)


def _draw_later(draw: random.Random) -> Happening:
    """One of the happenings that came later, by a draw of their own as well."""
    name = draw.choice(list(LATER))
    arguments = tuple(draw.choice(choices) for choices in HAPPENINGS[name].choices)
    return Happening(name, arguments, draw.choice(_PAUSES_SECONDS))


def _draw_scene(draw: random.Random) -> Scene:
    kind = draw.choices(list(_SCENES), list(_SCENES.values()))[0]
    replicas = 1 if kind == "groups" else draw.randint(1, 3)
    # As many nodes as what runs fills, or one more.
    nodes = replicas + draw.choice((0, 0, 1, 2))
    scene = Scene(
        devices=0,
        nodes=nodes,
        replicas=replicas,
        per_pod_gib=None,
        node_gib=1024,
        scales=kind not in ("groups", "weights") and draw.random() < 0.35,
        keda=draw.random() < 0.5,
        groups=kind == "groups",
        weights=kind == "weights",
        gitops=draw.random() < 0.3,
        hugepages=kind in ("cpu", "devices", "claims") and draw.random() < 0.15,
        route=kind != "groups" and draw.random() < 0.2,
    )
    match kind:
        case "cpu" | "weights":
            return replace(scene, node_gib=draw.choice((_ONE_POD_GIB, 1024)))
        case "devices":
            return replace(scene, devices=draw.choice((1, 4, 8, 8)))
        case "memory":
            return replace(scene, devices=draw.choice((1, 2, 4)), per_pod_gib=100, node_gib=110)
        case "claims":
            return _with_claim(replace(scene, devices=draw.choice((0, 4, 8, 8))), draw)
    return replace(scene, devices=draw.choice((1, 2, 4)), nodes=nodes + 1)


def _with_claim(scene: Scene, draw: random.Random) -> Scene:
    """In a zone that has as many nodes as what runs fills, or for one pod."""
    kind = draw.choice(("zone", "zone", "node", "pod"))
    if kind == "zone":
        nodes = min(6, 2 * scene.replicas - draw.choice((0, 1)))
        return replace(scene, claim=kind, nodes=nodes)
    return replace(scene, claim=kind, replicas=1, scales=False, nodes=draw.choice((1, 2, 3)))


def _draw_happening(draw: random.Random) -> Happening:
    names = list(HAPPENINGS)
    name = draw.choices(names, [HAPPENINGS[name].weight for name in names])[0]
    arguments = tuple(draw.choice(choices) for choices in HAPPENINGS[name].choices)
    return Happening(name, arguments, draw.choice(_PAUSES_SECONDS))


def shortest(story: Story, breaks: Callable[[Story], bool]) -> Story:
    """The story without whatever it does not need to break its promise."""
    number = 0
    while number < len(story.happenings):
        rest = (*story.happenings[:number], *story.happenings[number + 1 :])
        shorter = replace(story, happenings=rest)
        if breaks(shorter):
            story = shorter
        else:
            number += 1
    return story
