"""Generated lives of an AtomDeployment hold what the documents promise, whatever comes together.

A life that breaks a promise is told with the fewest happenings that break it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atom_operator.domain import JOB, POD
from tests.support.operator_life.happenings import GOOD, SPOILT
from tests.support.operator_life.lives import broken as broken
from tests.support.operator_life.lives import broken_seed
from tests.support.operator_life.story import Happening, Scene, Story

DAILY = 20
FIRST = 1  # of them in every run
# 136: a half-placed old group beside the last one that serves. 5000129: groups whose last one is
# refused are rolled back, and those that serve stay.
BROKEN_BEFORE = (136, 5000129)
LIVES_A_TEST = 100
_TYPO, _BAD = "registry.test/atom:typo", "registry.test/atom:bad"


def scene(**changes: Any) -> Scene:
    """One node with one pod of one device, unless something else is said."""
    usual = {"devices": 1, "nodes": 1, "replicas": 1, "per_pod_gib": None, "node_gib": 1024}
    return Scene(**{**usual, **changes})


CPU = scene(devices=0)
WEIGHTS = scene(devices=0, weights=True)
GROUPS = scene(devices=4, nodes=2, groups=True)
Steps = tuple[tuple[Any, ...], ...]  # each a name, its arguments, and seconds
# What operators have stumbled over, by public reports; each broke a promise of ours, too.
REPORTED: dict[str, tuple[Scene, Steps]] = {
    "an evicted pod beside its successor": (
        scene(devices=0, nodes=2),
        (("evict_by_its_kubelet", 0, 400),),
    ),
    "memory that the old pod holds": (
        scene(devices=4, per_pod_gib=100, node_gib=110),
        (("ask_for_a_length", 512, 400),),
    ),
    "a pod that waited for a lost node and then for its successor's memory": (
        scene(devices=2, per_pod_gib=100, node_gib=110, gitops=True),
        (
            ("lose_a_node", 7, 400),
            ("stop_the_operator", False, 1300),
            ("ask_for_memory", 100, 1300),
        ),
    ),
    "an autoscaler for a workload that was scaled to zero": (
        scene(devices=8, nodes=3, replicas=3),
        (("ask_for_replicas", 0, 400), ("ask_for_an_autoscaler", 2, 400)),
    ),
    "a rollback behind a quota that pods without a node fill": (
        scene(devices=0, nodes=3, replicas=2, node_gib=20),
        (("limit_by_a_quota", "pods", 0, 1), ("ask_for_memory", 100, 1700)),
    ),
    "a volume that was attached, on a node that is then lost": (
        scene(devices=4, nodes=2, claim="node"),
        (
            ("evict_by_its_api", 4, 20),
            ("ask_for_a_length", 512, 400),
            ("lose_a_node", 7, 400),
        ),
    ),
    "a quota of pods that is used up": (
        CPU,
        (("limit_by_a_quota", "pods", 0, 400), ("ask_for_a_length", 512, 1300)),
    ),
    "a quota of pods that is used up, by three": (
        scene(devices=0, nodes=3, replicas=3),
        (("limit_by_a_quota", "pods", 0, 400), ("ask_for_a_length", 512, 1300)),
    ),
    "a quota of devices that is used up, by three": (
        scene(devices=4, nodes=3, replicas=3),
        (
            ("limit_by_a_quota", "requests.amd.com/gpu", 0, 400),
            ("ask_for_a_length", 512, 20),
            ("restart_the_operator", 1300),
        ),
    ),
    "a quota of memory that is used up": (
        scene(),
        (("limit_by_a_quota", "requests.memory", 0, 400), ("ask_for_a_length", 512, 1300)),
    ),
    "a quota and old pods of several sizes": (
        scene(devices=0, nodes=5, replicas=3),
        (
            ("ask_for_memory", 48, 1),
            ("ask_for_a_length", None, 400),
            ("ask_for_a_length", 512, 20),
            ("limit_by_a_quota", "limits.memory", 1, 1300),
        ),
    ),
    "a quota that holds fewer pods than are asked for, old and new": (
        scene(devices=0, nodes=5, replicas=3, scales=True),
        (
            ("lift_the_quota", 1300),
            ("limit_by_a_quota", "limits.memory", 1, 100),
            ("ask_for_a_length", 512, 100),
            ("ask_for_an_autoscaler", None, 1300),
        ),
    ),
    "a second reason to refuse pods, which no condition tells": (
        scene(devices=4, nodes=3, scales=True),
        (
            ("limit_by_a_quota", "limits.memory", 1, 20),
            ("evict_by_its_kubelet", 7, 1),
            ("limit_by_a_range", {"default": {"memory": "256Gi"}}, 1300),
        ),
    ),
    "a group whose worker is refused, and that then goes": (
        scene(nodes=2, groups=True, gitops=True),
        (
            ("delete_a_pod", 3, 1),
            ("refuse_by_a_policy", (POD, JOB), 1300),
            ("drain_a_node", 2, 1300),
        ),
    ),
    "a node that is free, where the volume cannot be attached": (
        scene(devices=8, nodes=2, claim="zone"),
        (("ask_for_a_length", 512, 400),),
    ),
    "an image that is missed behind a volume that came late": (
        scene(devices=8, nodes=3, claim="node"),
        (("ask_for_an_image", _TYPO, 800),),
    ),
    "hugepages that the old pod holds": (
        scene(devices=4, hugepages=True),
        (("ask_for_a_length", 512, 400),),
    ),
    "more replicas than one disk is for": (
        scene(devices=0, nodes=2, claim="pod"),
        (("ask_for_replicas", 4, 400),),
    ),
    "a disk on a node that is lost": (
        scene(devices=0, nodes=2, claim="node"),
        (("lose_a_node", 0, 1300), ("lose_a_node", 1, 400)),
    ),
    "requests that move from pod to pod under an autoscaler": (
        scene(devices=0, nodes=3, replicas=3, scales=True),
        (
            ("let_the_load_move", 2.5, 400),
            ("let_requests_open", 0, 9, 100),
            ("let_requests_open", 1, 70, 100),
            ("let_requests_open", 0, 0, 400),
            ("let_the_load_move", 0.5, 1300),
        ),
    ),
    "a profile that is spoilt while a pod is made anew": (
        scene(devices=4, nodes=2),
        (
            ("change_the_profile", "1", 400),
            ("change_the_profile", SPOILT, 20),
            ("delete_a_pod", 0, 400),
            ("change_the_profile", "2", 400),
            ("change_the_profile", None, 400),
        ),
    ),
    "a route that is refused and then taken up": (
        scene(devices=0, route=True),
        (("let_the_gateway_refuse", "Accepted", 400), ("let_the_gateway_refuse", None, 100)),
    ),
    "a download whose image is wrong": (
        WEIGHTS,
        (
            ("ask_for_an_image", _TYPO, 20),
            ("delete_and_apply_again", 400),
            ("ask_for_an_image", GOOD[0], 1300),
        ),
    ),
    "a download without limits under a quota of them": (
        WEIGHTS,
        (("limit_by_a_quota", "limits.cpu", 0, 1), ("delete_and_apply_again", 400)),
    ),
    "a download that a policy refuses": (
        WEIGHTS,
        (("refuse_by_a_policy", (POD, JOB), 1), ("delete_and_apply_again", 1300)),
    ),
    "a download above a limit range": (
        WEIGHTS,
        (("limit_by_a_range", {"max": {"memory": "1Gi"}}, 1), ("delete_and_apply_again", 1300)),
    ),
    "groups that a policy refuses": (
        GROUPS,
        (("refuse_by_a_policy", (POD,), 1), ("delete_and_apply_again", 1300)),
    ),
    "groups that fail and are made anew": (GROUPS, (("ask_for_an_image", _BAD, 1300),)),
    "a group whose worker its node rejects again and again": (
        scene(devices=2, nodes=3, groups=True),
        (("let_a_kubelet_reject", 1, True, 20), ("evict_by_its_kubelet", 6, 1300)),
    ),
    "a group that falls with its worker while another one starts": (
        scene(devices=4, nodes=4, groups=True),
        (("ask_for_replicas", 2, 100), ("delete_a_pod", 5, 100)),
    ),
    "groups that are asked to go and still end": (
        scene(devices=4, nodes=2, groups=True, gitops=True),
        (("ask_for_replicas", 0, 20), ("evict_by_its_api", 3, 400)),
    ),
    "a quota that holds fewer new pods than old ones serve": (
        scene(devices=0, nodes=5, replicas=3),
        (
            ("limit_by_a_quota", "requests.memory", 0, 1),
            ("ask_for_memory", 48, 400),
            ("ask_for_a_length", 512, 400),
        ),
    ),
    "a node of one that is tainted": (
        scene(devices=8),
        (("taint_a_node", 0, 400), ("ask_for_a_length", 512, 1300)),
    ),
    "a node that loses the label of its product": (
        scene(devices=4),
        (("unlabel_a_node", 0, 400), ("ask_for_a_length", 512, 1300)),
    ),
    "a node that loses its label under an autoscaler": (
        scene(devices=8, nodes=3, replicas=2, scales=True),
        (("unlabel_a_node", 0, 400), ("let_the_load_move", 9.0, 900)),
    ),
    "pods that begin while the only node has a taint for sick devices": (
        scene(devices=4),
        (
            ("ask_for_replicas", 0, 400),
            ("let_devices_fall_sick", 0, 8, "taint", 20),
            ("ask_for_replicas", 1, 400),
        ),
    ),
    "groups beside a node that is tainted": (
        GROUPS,
        (("taint_a_node", 0, 400), ("ask_for_a_length", 512, 1300)),
    ),
    "the only node cordoned": (CPU, (("cordon_a_node", 0, 400), ("ask_for_a_length", 512, 1300))),
    "ReplicaSets deleted in the middle of a rollout": (
        scene(devices=4),
        (("ask_for_a_length", 512, 5), ("delete_the_replica_sets", 700)),
    ),
    "quotas of cpu and of the count of pods": (
        CPU,
        (
            ("limit_by_a_quota", "requests.cpu", 0, 400),
            ("ask_for_a_length", 512, 900),
            ("limit_by_a_quota", "count/pods", 0, 400),
            ("ask_for_a_length", 1024, 900),
        ),
    ),
    "pods below what a range asks for": (
        CPU,
        (("limit_by_a_range", {"min": {"memory": "64Gi"}}, 400), ("ask_for_a_length", 512, 1300)),
    ),
    "old pods of several sizes on one node": (
        scene(devices=0, nodes=3, replicas=3, node_gib=20, scales=True, keda=True, route=True),
        (
            ("let_the_load_move", 2.5, 400),
            ("drain_a_node", 1, 1),
            ("evict_by_its_api", 2, 20),
            ("ask_for_memory", None, 1),
            ("ask_for_a_length", 1024, 1300),
        ),
    ),
    "a quota that a pod without a node has left in the second of the refusal": (
        scene(devices=2, nodes=2, replicas=2, per_pod_gib=100, node_gib=110, gitops=True),
        (
            ("limit_by_a_quota", "requests.amd.com/gpu", 0, 400),
            ("drain_a_node", 1, 400),
            ("ask_for_memory", None, 20),
        ),
    ),
    "a change while the only node is lost, of pods whose claim one of them can mount": (
        scene(devices=4, claim="pod"),
        (("lose_a_node", 0, 1400), ("ask_for_a_length", 512, 20), ("return_a_node", 0, 1300)),
    ),
    "a device less on the node of one of two, and then a change": (
        scene(devices=8, nodes=2, replicas=2),
        (("let_devices_fall_sick", 5, 1, "engine", 1300), ("ask_for_a_length", 512, 1300)),
    ),
    "a device less on the node of one of three, and then a change": (
        scene(devices=8, nodes=3, replicas=3),
        (("let_devices_fall_sick", 5, 1, "plugin", 400), ("ask_for_a_length", 512, 1300)),
    ),
    "a quota that a pod holds which stays on a lost node": (
        scene(devices=4, nodes=2, per_pod_gib=100, node_gib=110, gitops=True),
        (
            ("ask_for_a_length", 512, 100),
            ("ask_for_a_length", None, 1),
            ("limit_by_a_quota", "pods", 0, 20),
            ("lose_a_node", 1, 1301),
        ),
    ),
    "a quota that a pod holds which stays on a lost node, while no other takes one": (
        scene(devices=0, nodes=2, node_gib=20),
        (
            ("limit_by_a_quota", "pods", 0, 20),
            ("ask_for_memory", 100, 1),
            ("lose_a_node", 1, 1301),
        ),
    ),
    "an image that is missed beside an old pod on a sick device": (
        scene(devices=4, nodes=4, replicas=3, per_pod_gib=100, node_gib=110),
        (("ask_for_an_image", _TYPO, 20), ("let_devices_fall_sick", 6, 1, "engine", 500)),
    ),
    "a pod that begins on a node that is lost": (
        scene(devices=8, nodes=2, claim="node"),
        (("ask_for_memory", 200, 1), ("lose_a_node", 2, 100), ("restart_the_operator", 900)),
    ),
    "groups whose profile is edited while their pods would be refused": (
        GROUPS,
        (("limit_by_a_quota", "limits.memory", 1, 400), ("change_the_profile", "1", 400)),
    ),
    "a disk on the only node that is not cordoned": (
        scene(devices=0, nodes=2, claim="node"),
        (("drain_a_node", 4, 20), ("ask_for_a_length", 512, 400)),
    ),
    "a device that is well again in the minute in which its pod would move": (
        scene(per_pod_gib=100, node_gib=110),
        (("let_devices_fall_sick", 0, 8, "taint", 1300), ("let_devices_recover", 4, 400)),
    ),
    "a group that fails where it was put back": (
        scene(devices=4, nodes=2, groups=True, gitops=True),
        (
            ("lose_a_node", 1, 20),
            ("ask_for_a_length", 512, 1300),
            ("let_devices_fall_sick", 4, 8, "engine", 400),
        ),
    ),
    "a quota that refuses one more old pod while new ones would fit": (
        scene(devices=0, nodes=3, replicas=2, keda=True, weights=True),
        (
            ("ask_for_memory", 100, 100),
            ("limit_by_a_quota", "limits.memory", 1, 400),
            ("ask_for_replicas", 4, 1),
            ("ask_for_memory", None, 1300),
        ),
    ),
    "a drain in the second in which a rollout lets a pod go": (
        scene(devices=8, nodes=3, replicas=3),
        (("ask_for_memory", 48, 100), ("drain_a_node", 0, 400)),
    ),
    "a frontend through a drain, a rollout and its own end": (
        scene(devices=4, nodes=2, replicas=2),
        (
            ("ask_for_a_frontend", 2, 400),
            ("drain_a_node", 0, 400),
            ("ask_for_a_length", 512, 900),
            ("ask_for_a_frontend", None, 400),
        ),
    ),
    "a workload that is paused": (
        scene(devices=0, replicas=2),
        (
            ("pause_the_workload", True, 20),
            ("ask_for_a_length", 512, 1300),
            ("pause_the_workload", False, 400),
        ),
    ),
}
# What comes before a quota of as much as is used.
QUOTA_FILLED: dict[str, tuple[Scene, Steps]] = {
    "groups that fail and are made anew": (GROUPS, (("ask_for_an_image", _BAD, 400),)),
    "groups that never were ready": (
        GROUPS,
        (("ask_for_an_image", _BAD, 1), ("delete_and_apply_again", 1000)),
    ),
    "a pod that stays on a lost node": (
        scene(devices=8, nodes=4),
        (("lose_a_node", 3, 100), ("ask_for_an_image", _BAD, 1)),
    ),
    "a pod that stays on a lost node, autoscaled": (
        scene(devices=8, nodes=4, replicas=3, scales=True, keda=True),
        (("lose_a_node", 3, 100), ("ask_for_an_image", _BAD, 1)),
    ),
}
# What a pod reports before its node falls silent: as old as the last report of its kubelet.
OLD_FAULTS: dict[str, tuple[Scene, Steps]] = {
    "an image that is missing": (scene(devices=8, nodes=2), (("ask_for_an_image", _TYPO, 200),)),
    "an engine that ends": (scene(devices=8, nodes=2), (("ask_for_an_image", _BAD, 200),)),
    "nothing yet": (scene(devices=8, nodes=2), (("ask_for_a_length", 512, 20),)),
    "a disk on another node": (
        scene(devices=8, nodes=2, claim="node"),
        (("lose_a_node", 1, 100), ("delete_and_apply_again", 40)),
    ),
}
# Who may stand against new pods, when old ones have to go first; the last counts those that go.
REFUSALS: dict[str, tuple[Any, ...]] = {
    "a quota of limits without room": ("limit_by_a_quota", "limits.memory", 0, 100),
    "a quota of fewer pods than there are": ("limit_by_a_quota", "pods", -1, 100),
    "a limit range": ("limit_by_a_range", {"max": {"memory": "1Gi"}}, 100),
    "a policy": ("refuse_by_a_policy", (POD,), 100),
    "a policy engine that is down": ("let_the_policy_engine_be_down", ("Pod",), 100),
}
FULL = {
    "alone": scene(devices=8),
    "two on one node": scene(devices=4, replicas=2),
    "groups": scene(devices=8, nodes=2, groups=True),
}


def told(where: Scene, steps: Steps) -> Story:
    return Story(where, tuple(Happening(step[0], step[1:-1], step[-1]) for step in steps))


def live(seed: int) -> None:
    found = broken_seed("plain", seed)
    assert found is None, str(found)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("report", REPORTED)
def test_what_operators_stumble_over_breaks_no_promise(report: str) -> None:
    assert broken(told(*REPORTED[report])) is None


@pytest.mark.slow
@pytest.mark.parametrize("report", [name for name in REPORTED if REPORTED[name][0].devices])
def test_with_claimed_devices_it_breaks_no_promise_either(report: str) -> None:
    where, steps = REPORTED[report]
    assert broken(told(replace(where, claimed=True), steps)) is None


@pytest.mark.sampled(2)
@pytest.mark.singles
@pytest.mark.parametrize("claimed", [False, True], ids=["plugin", "claims"])
@pytest.mark.parametrize("resource", ["pods", "requests.amd.com/gpu", "requests.memory"])
@pytest.mark.parametrize("happens", QUOTA_FILLED)
def test_a_quota_that_own_pods_fill_breaks_no_promise(
    happens: str, resource: str, claimed: bool
) -> None:
    where, steps = QUOTA_FILLED[happens]
    where = replace(where, claimed=claimed and bool(where.devices))
    assert broken(told(where, (*steps, ("limit_by_a_quota", resource, 0, 1300)))) is None


@pytest.mark.sampled(2)
@pytest.mark.singles
@pytest.mark.parametrize("claimed", [False, True], ids=["plugin", "claims"])
@pytest.mark.parametrize("where", FULL)
@pytest.mark.parametrize("who", REFUSALS)
def test_what_serves_stays_while_new_pods_would_be_refused(
    who: str, where: str, claimed: bool
) -> None:
    change = ("ask_for_a_length", 512, 1300)
    scene = replace(FULL[where], claimed=claimed)
    assert broken(told(scene, (REFUSALS[who], change))) is None


@pytest.mark.parametrize("fault", OLD_FAULTS)
def test_a_silent_node_is_named_beside_an_older_fault(fault: str) -> None:
    where, steps = OLD_FAULTS[fault]
    lost = (("lose_a_node", 0, 1), ("lose_a_node", 1, 400))
    assert broken(told(where, (*steps, *lost))) is None


def test_lives_hold_what_the_documents_promise() -> None:
    for seed in range(FIRST):
        live(seed)


@pytest.mark.whole
def test_more_lives_hold_what_the_documents_promise() -> None:
    for seed in (*range(FIRST, DAILY), *BROKEN_BEFORE):
        live(seed)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(100))
def test_ten_thousand_lives_hold_what_the_documents_promise(hundred: int) -> None:
    for seed in range(hundred * LIVES_A_TEST, (hundred + 1) * LIVES_A_TEST):
        live(seed)
