"""Fewer replicas in the middle of a rollout stop no pod that is needed: whoever asks for them and
when, however many have no place, and whatever there is too little of."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest

from tests.operator.lives.test_generated_life import broken, scene, told
from tests.support.operator_life.life import Life
from tests.support.operator_life.story import Story, Wider
from tests.support.operator_life.wider import RULES

_TYPO, _BAD, _GOOD = (f"registry.test/atom:{name}" for name in ("typo", "bad", "2"))
_CPU = {"devices": 0, "per_pod_gib": 100, "node_gib": 110}
_MOMENTS = (1, 5, 10, 20, 30, 40, 60, 80, 100, 120, 160, 200)
_EDITS = (
    ("ask_for_a_length", 512),
    ("ask_for_a_length", 512),
    ("ask_for_an_image", _GOOD),
    ("ask_for_an_image", _BAD),
    ("ask_for_an_image", _TYPO),
)
_FAULTS = ("lose_a_node", "delete_a_pod", "evict_by_its_kubelet")
# What there is too little of, by how a scene of so many places is changed.
LACKS: dict[str, Any] = {
    "devices": lambda draw, places: {"devices": 8, "nodes": places},
    "half nodes": lambda draw, places: {"devices": 4, "nodes": max(1, places // 2)},
    "claims": lambda draw, places: {"devices": 8, "nodes": places, "claimed": True},
    "cpu": lambda draw, places: {**_CPU, "nodes": places},
    "hosts": lambda draw, places: {
        "devices": 8,
        "nodes": places,
        "wider": Wider(rule=draw.choice([rule for rule in RULES if rule])),
    },
    "groups": lambda draw, places: {
        "devices": draw.choice((2, 4)),
        "nodes": min(8, 2 * places),
        "groups": True,
    },
    "quota": lambda draw, places: {"devices": draw.choice((0, 1)), "nodes": 6},
    "autoscaled": lambda draw, places: {
        **_CPU,
        "nodes": min(3, places),
        "replicas": 3,
        "scales": True,
        "keda": draw.random() < 0.5,
    },
}


def draw_story(lacks: str, number: int) -> Story:
    """Draw a rollout, a smaller number of replicas after a moment of it, and something between."""
    draw = random.Random(f"{lacks} {number}")
    replicas = draw.randint(3, 6)
    where = scene(**{"replicas": replicas, **LACKS[lacks](draw, draw.randint(1, replicas))})
    steps: list[tuple[Any, ...]] = []
    if lacks == "quota":
        more = replicas + draw.choice((1, 2))
        steps += [("limit_by_a_quota", "pods", 0, 50), ("ask_for_replicas", more, 100)]
    if lacks == "autoscaled":
        steps.append(("let_the_load_move", 9.0, 400))
    steps.append((*draw.choice(_EDITS), draw.choice(_MOMENTS)))
    if draw.random() < 0.3:
        steps.append((draw.choice(_FAULTS), draw.randint(0, 5), draw.choice((1, 20, 60))))
    if draw.random() < 0.3:
        steps.append(("ask_for_a_length", 1024, draw.choice((1, 20, 60))))
    if lacks == "autoscaled":
        steps.append(("let_the_load_move", draw.choice((0.5, 1.5)), 900))
        return told(where, tuple(steps))
    steps.append(("ask_for_replicas", draw.randint(1, replicas - 1), draw.choice((1, 20, 900))))
    if draw.random() < 0.4:
        again = ("ask_for_replicas", draw.randint(1, replicas))
        steps.append((*draw.choice((again, ("roll_back_the_spec",))), 300))
    return told(where, tuple(steps))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.whole)])
@pytest.mark.parametrize("lacks", LACKS)
def test_fewer_replicas_in_a_rollout_stop_no_pod_that_is_needed(lacks: str, number: int) -> None:
    story = draw_story(lacks, number)
    assert broken(story) is None, story


@pytest.mark.slow
@pytest.mark.parametrize(("lacks", "number"), product(LACKS, range(2, 60)))
def test_fewer_replicas_stop_none_whatever_comes_between(lacks: str, number: int) -> None:
    story = draw_story(lacks, number)
    assert broken(story) is None, story


def scale_down_during_a_rollout(keda: bool, load: float, before: int) -> None:
    """The autoscaler asks for fewer 300 s after the load has fallen, which is in a rollout that
    begins `before` seconds after it, with 6 replicas and 4 places."""
    life = Life(scene(**_CPU, nodes=4, replicas=3, scales=True, keda=keda))
    try:
        life.ask(autoscaling={**life.spec["autoscaling"], "maxReplicas": 6})
        life.state.load["chat"] = 9.0
        life.cluster.advance(1000)
        assert (len(life.pods), len(life.cluster.serving("chat"))) == (6, 4)
        life.state.load["chat"] = load
        life.cluster.advance(before)
        life.engine(maxModelLen=512)
        life.cluster.advance(1500)  # the promises are judged in every round
        assert life.workload is not None
        assert life.workload["spec"]["replicas"] == int(load + 1)
    finally:
        life.operator.close()


@pytest.mark.sampled(1)
@pytest.mark.singles
@pytest.mark.parametrize("keda", [False, True])
@pytest.mark.parametrize(("load", "before"), [(2.9, 285), (3.9, 295), (3.9, 200)])
def test_an_autoscaler_leaves_the_replicas_alone_while_a_rollout_lacks_places(
    keda: bool, load: float, before: int
) -> None:
    scale_down_during_a_rollout(keda, load, before)


@pytest.mark.slow
@pytest.mark.parametrize("keda", [False, True])
@pytest.mark.parametrize(
    ("load", "before"), product((0.9, 1.9, 2.9, 3.9, 4.9), range(180, 300, 15))
)
def test_an_autoscaler_leaves_the_replicas_alone_at_every_moment(
    keda: bool, load: float, before: int
) -> None:
    scale_down_during_a_rollout(keda, load, before)


@pytest.mark.sampled(1)
@pytest.mark.singles
@pytest.mark.parametrize("keda", [False, True])
@pytest.mark.parametrize("node_gib", [20, 40])
@pytest.mark.parametrize("after", [1, 100, 400])
def test_an_autoscaler_may_ask_for_as_few_replicas_as_larger_pods_have_places(
    after: int, node_gib: int, keda: bool
) -> None:
    """A load that has fallen asks for fewer of the larger pods, and those fit."""
    where = scene(devices=0, node_gib=node_gib, scales=True, keda=keda)
    story = told(where, (("let_the_load_move", 9.0, after),))
    assert broken(story) is None, story
