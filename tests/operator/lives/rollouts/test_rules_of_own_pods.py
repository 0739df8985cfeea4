"""A rollout does not wait for its own old pods if only their rules keep new ones off a free node:
whatever the rule, wherever they serve, and whenever their nodes stop taking pods."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.operator.lives.test_generated_life import Steps, broken, scene, told
from tests.support.operator_life.happenings import PRESSURES
from tests.support.operator_life.story import Scene, Story, Wider

_TOGETHER, _SPREAD = "together in a zone", "spread over zones"
_EDITS: Steps = (
    ("ask_for_a_length", 512),
    ("ask_for_an_image", "registry.test/atom:2"),
    ("rename_the_model", "one"),
    ("ask_for_a_frontend", 3),
)
_MOMENTS = (1, 5, 20, 60, 100, 400, 1300)
_CPU: dict[str, Any] = {"devices": 0}

# Each kept a rollout waiting for as long as its old pods served.
FOUND: dict[str, tuple[Scene, Steps]] = {
    "one of three serves, the others have no place": (
        scene(devices=0, nodes=2, replicas=3, node_gib=20, hugepages=True, wider=Wider(_TOGETHER)),
        (("put_a_node_under_pressure", 1, "memory-pressure", 1), ("ask_for_a_frontend", 3, 400)),
    ),
    "four serve on one node": (
        scene(nodes=2, replicas=4, keda=True, wider=Wider(_TOGETHER, brings_nodes=True)),
        (
            ("put_a_node_under_pressure", 5, "memory-pressure", 1300),
            ("ask_for_a_frontend", 3, 400),
        ),
    ),
    "a node that is added is in another zone": (
        scene(devices=8, claim="node", gitops=True, wider=Wider(_TOGETHER, brings_nodes=True)),
        (("put_a_node_under_pressure", 1, "disk-pressure", 20), ("rename_the_model", "one", 400)),
    ),
    "an autoscaled model": (
        scene(
            devices=0,
            nodes=2,
            replicas=2,
            node_gib=20,
            scales=True,
            keda=True,
            wider=Wider(_TOGETHER, brings_nodes=True),
        ),
        (
            ("put_a_node_under_pressure", 3, "pid-pressure", 1),
            ("ask_for_a_length", 512, 20),
            ("ask_for_an_autoscaler", 2, 1300),
        ),
    ),
    "a spread that one old pod fills in the zone of the volume": (
        scene(devices=0, nodes=4, replicas=2, claim="zone", gitops=True, wider=Wider(_SPREAD)),
        (
            ("put_a_node_under_pressure", 2, "memory-pressure", 1300),
            ("rename_the_model", "one", 1300),
        ),
    ),
    "pods that keep each other off a node, and new ones without that rule": (
        scene(devices=1, nodes=2, replicas=2, wider=Wider("apart by host")),
        (("drop_the_template", 900),),
    ),
    "a new pod that loads on a node that is lost": (
        scene(devices=2, nodes=4, replicas=5, per_pod_gib=100, node_gib=110, keda=True),
        (
            ("ask_for_an_image", "registry.test/atom:2", 20),
            ("lose_a_node", 0, 1400),
        ),
    ),
}


def draw_story(number: int) -> Story:
    """Draw a rollout of pods with a rule, whose nodes stop taking pods before it or during it."""
    draw = random.Random(f"rules of own pods {number}")
    devices = draw.choice((0, 1, 4, 8))
    where = scene(
        devices=devices,
        nodes=draw.randint(2, 4),
        replicas=draw.randint(1, 4),
        node_gib=1024 if devices else draw.choice((20, 1024)),
        hugepages=draw.random() < 0.2,
        gitops=draw.random() < 0.3,
        wider=Wider(draw.choice((_TOGETHER, _TOGETHER, _SPREAD)), draw.random() < 0.3),
    )
    edit = (*draw.choice(_EDITS), draw.choice(_MOMENTS))
    # Names alternate between two zones, and the first pods go to the last of them.
    zone = int(draw.random() < 0.9)
    full = [node for node in range(where.nodes) if node % 2 == zone]
    faults = [("put_a_node_under_pressure", node, draw.choice(PRESSURES)) for node in full]
    faults = [(*fault, draw.choice(_MOMENTS)) for fault in faults]
    place = draw.choice((len(faults), len(faults), draw.randint(0, len(faults))))
    return told(where, (*faults[:place], edit, *faults[place:], ("restart_the_operator", 900)))


@pytest.mark.sampled(3)
@pytest.mark.singles
@pytest.mark.parametrize("name", FOUND)
def test_a_rule_that_ends_with_the_old_pods_holds_no_rollout_up(name: str) -> None:
    assert broken(told(*FOUND[name])) is None


_DRAWN = [*range(8), *(pytest.param(n, marks=pytest.mark.whole) for n in range(8, 24))]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", _DRAWN)
def test_drawn_rules_hold_no_rollout_up(number: int) -> None:
    story = draw_story(number)
    found = broken(story)
    assert found is None, f"{found}\n{story}"
