"""Generated lives with rules between pods, others' autoscalers, a policy engine that is down and
callers by header hold what the documents promise."""

from __future__ import annotations

import pytest

from atom_operator.integration_values import Autoscaling
from tests.operator.lives.test_generated_life import broken, scene, told
from tests.support.operator_life.lives import broken_seed
from tests.support.operator_life.story import Wider
from tests.support.operator_life.wider import RULES

# 23: a policy engine is down when a pod is to be replaced in its place. 35: a spare pod is kept off
# by the rules of the pods before it. 65: a fight for the replicas of what was rolled back.
# 3000201: a pod of a revision that was replaced in the moment in which its ReplicaSet makes it.
DAILY = (23,)
# 6000402: a node comes in the moment in which a pod is to be replaced in its place. 8001101: an
# autoscaler of fewer replicas is asked for while a rollout is short of places.
MORE = (0, 1, 2, 35, 65, 3000201, 6000402, 8001101)


def live(seed: int) -> None:
    found = broken_seed("wider", seed)
    assert found is None, str(found)


def test_wider_lives_hold_what_the_documents_promise() -> None:
    for seed in DAILY:
        live(seed)


@pytest.mark.whole
def test_more_wider_lives_hold_what_the_documents_promise() -> None:
    for seed in MORE:
        live(seed)


@pytest.mark.sampled(2)
@pytest.mark.singles
@pytest.mark.parametrize("devices", [1, 4, 8])
@pytest.mark.parametrize("rule", [name for name in RULES if name])
def test_a_rule_between_pods_holds_no_rollout_up(rule: str, devices: int) -> None:
    where = scene(devices=devices, nodes=2, replicas=2, wider=Wider(rule=rule))
    steps = (("ask_for_a_length", 512, 1300), ("ask_for_a_length", 1024, 1300))
    assert broken(told(where, steps)) is None


@pytest.mark.sampled(2)
@pytest.mark.singles
@pytest.mark.parametrize("after", [20, 40, 60, 80, 100, 160])
@pytest.mark.parametrize(("replicas", "fewer"), [(5, 4), (5, 3), (5, 2), (6, 3)])
def test_fewer_replicas_during_a_rollout_stop_no_pod_that_is_needed(
    replicas: int, fewer: int, after: int
) -> None:
    """Replicas without a place let one pod more be away; of fewer replicas each has its place."""
    where = scene(devices=8, nodes=4, replicas=replicas, wider=Wider(rule="spread over hosts"))
    steps = (("ask_for_a_length", 512, after), ("ask_for_replicas", fewer, 900))
    assert broken(told(where, steps)) is None


@pytest.mark.parametrize("keda", [False, True])
def test_an_autoscaler_asked_for_in_a_rollout_short_of_places_stops_no_pod(keda: bool) -> None:
    where = scene(devices=8, nodes=3, replicas=5, keda=keda)
    steps = (("ask_for_a_length", 512, 20), ("ask_for_an_autoscaler", 4, 900))
    assert broken(told(where, steps)) is None


@pytest.mark.parametrize("rule", ["apart by host", "spread over hosts"])
def test_pods_of_two_revisions_that_wait_for_different_things_are_both_told(rule: str) -> None:
    where = scene(devices=0, nodes=3, replicas=4, node_gib=20, wider=Wider(rule=rule))
    assert broken(told(where, (("ask_for_memory", 200, 1300),))) is None


@pytest.mark.sampled(2)
@pytest.mark.singles
@pytest.mark.parametrize("devices", [4, 8])
@pytest.mark.parametrize("keda", [False, True])
@pytest.mark.parametrize("happens", ["grow", "an edit meanwhile", "a node lost"])
def test_a_load_brings_its_nodes_and_stops_no_pod(devices: int, keda: bool, happens: str) -> None:
    brings = Wider(brings_nodes=True)
    where = scene(devices=devices, nodes=1, scales=True, keda=keda, wider=brings)
    between = {
        "grow": (),
        "an edit meanwhile": (("ask_for_a_length", 512, 900),),
        "a node lost": (("lose_a_node", 1, 900),),
    }
    steps = (("let_the_load_move", 4.0, 200), *between[happens], ("let_the_load_move", 4.0, 2500))
    assert broken(told(where, steps)) is None


def test_pods_of_another_zone_go_for_a_node_that_comes_during_a_rollout() -> None:
    """A rule of their own keeps new pods off the only open node until the last old one has gone."""
    where = scene(
        devices=0, nodes=2, replicas=2, wider=Wider(rule="together in a zone", brings_nodes=True)
    )
    steps = (
        ("let_devices_fall_sick", 0, 8, "taint", 1300),
        ("put_a_node_under_pressure", 1, "disk-pressure", 1300),
        ("rename_the_model", "two", 400),
    )
    assert broken(told(where, steps)) is None


def test_half_placed_groups_keep_places_that_a_rule_keeps_from_others() -> None:
    rule = Wider(rule="spread over zones")
    where = scene(nodes=2, replicas=3, groups=True, claimed=True, wider=rule)
    steps = (
        ("put_a_node_under_pressure", 2, "memory-pressure", 400),
        ("rename_the_model", "one", 400),
    )
    assert broken(told(where, steps)) is None


def test_the_judge_tells_of_a_load_that_brings_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Autoscaling, "pending", 0)
    where = scene(devices=8, nodes=1, scales=True, wider=Wider(brings_nodes=True))
    found = broken(told(where, (("let_the_load_move", 4.0, 900),)))
    assert found is not None
    assert "the load asks for 4, and (1, 1, 1)" in found


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(20))
def test_two_thousand_wider_lives(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        live(seed)
