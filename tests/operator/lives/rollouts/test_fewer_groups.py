"""Fewer groups are asked for while one of those that stay does not serve: the controller ends the
last ones, so the number falls once what stays serves."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest

from atom_operator.domain import POD
from tests.operator.lives.test_generated_life import broken, scene, told
from tests.support.operator_life.happenings import HAPPENINGS
from tests.support.operator_life.life import Life
from tests.support.operator_life.wider import Wider

ENDS = ("delete_a_pod", "evict_by_its_kubelet")
CASES = list(product(((2, 1), (3, 1), (3, 2), (4, 2)), ENDS, (0, 3, 6), (1, 30)))
DAILY = [case for number, case in enumerate(CASES) if number % 9 == 0]
_APART = Wider(rule="apart by host", brings_nodes=False, by_header=False)


def fall(numbers: tuple[int, int], end: str, pod: int, seconds: int) -> None:
    many, few = numbers
    where = scene(devices=2, nodes=3, replicas=many, groups=True)
    assert broken(told(where, ((end, pod, seconds), ("ask_for_replicas", few, 400)))) is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("numbers", "end", "pod", "seconds"), DAILY)
def test_groups_that_serve_stay_until_those_that_remain_do(
    numbers: tuple[int, int], end: str, pod: int, seconds: int
) -> None:
    fall(numbers, end, pod, seconds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("numbers", "end", "pod", "seconds"), [case for case in CASES if case not in DAILY]
)
def test_groups_that_serve_stay_until_those_that_remain_do_in_all_cases(
    numbers: tuple[int, int], end: str, pod: int, seconds: int
) -> None:
    fall(numbers, end, pod, seconds)


class Fewer:
    """Three groups serve, and the first one is lost as one is asked for."""

    def __init__(self, **changes: Any) -> None:
        usual = {"devices": 4, "nodes": 3, "replicas": 3, "groups": True}
        self.life = Life(scene(**{**usual, **changes}))
        self.life.cluster.advance(400)

    def happens(self, name: str, *arguments: Any) -> None:
        self.life.promises.happens(name)
        HAPPENINGS[name].does(self.life, *arguments)
        self.life.cluster.advance(10)

    @property
    def asked(self) -> int:
        workload = self.life.workload
        assert workload is not None
        return int(workload["spec"]["replicas"])

    def told(self, kind: str) -> str:
        parent = self.life.parent
        assert parent is not None
        found = (item for item in parent["status"]["conditions"] if item["type"] == kind)
        return str(next(found)["message"])

    @property
    def serving(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.life.promises._serving()]


def test_the_number_falls_as_soon_as_the_first_group_serves_again() -> None:
    fewer = Fewer()
    try:
        fewer.happens("delete_a_pod", 0)
        fewer.happens("ask_for_replicas", 1)
        assert (fewer.asked, fewer.serving) == (3, ["chat-1", "chat-2"])
        fewer.life.cluster.advance(400)
        assert (fewer.asked, fewer.serving) == (1, ["chat-0"])
    finally:
        fewer.life.operator.close()


def test_the_status_reports_why_more_groups_are_there_than_asked_for() -> None:
    fewer = Fewer()
    try:
        fewer.happens("delete_a_pod", 0)
        fewer.happens("ask_for_replicas", 1)
        why = "spec.replicas is 1, and 3 groups stay until those of the lowest numbers serve"
        for kind in ("Progressing", "Ready"):
            assert f"{why} (not yet: 0)" in fewer.told(kind)
        fewer.life.cluster.advance(400)
        assert "groups stay" not in f"{fewer.told('Progressing')} {fewer.told('Ready')}"
    finally:
        fewer.life.operator.close()


@pytest.mark.sampled(1)
@pytest.mark.singles
@pytest.mark.parametrize("keda", [True, False])
@pytest.mark.parametrize("happening", [("delete_a_pod", 0), ("ask_for_a_length", 512)])
@pytest.mark.parametrize("load", [0.5, 1.5])
def test_an_autoscaler_may_not_end_groups_that_serve_in_the_stead_of_others(
    keda: bool, happening: tuple[Any, ...], load: float
) -> None:
    """The load falls while the first group loads for longer than an autoscaler waits."""
    fewer = Fewer(scales=True, keda=keda, replicas=1)
    try:
        fewer.life.state.load["chat"] = 3.0
        fewer.life.cluster.advance(400)
        assert fewer.serving == ["chat-0", "chat-1", "chat-2"]
        fewer.happens(*happening)
        while "chat-0" in fewer.serving:  # a rollout comes to the first group last
            fewer.life.cluster.advance(10)
        late = fewer.life.state.time + 1200
        fewer.life.cluster.kubelets.answers = lambda pod: (
            pod["metadata"]["name"] != "chat-0" or fewer.life.state.time > late
        )
        fewer.life.state.load["chat"] = load
        few = math.ceil(load)
        for _ in range(100):
            fewer.life.cluster.advance(10)
            assert len(fewer.serving) >= few, fewer.life.state.time
            if "chat-0" not in fewer.serving:
                assert "minReplicas is 1, and 3 groups stay" in fewer.told("Progressing")
        fewer.life.cluster.advance(900)
        assert sorted(fewer.serving) == [f"chat-{number}" for number in range(few)]
    finally:
        fewer.life.operator.close()


def test_none_are_asked_for_at_once_if_it_is_suspended() -> None:
    fewer = Fewer()
    try:
        fewer.happens("delete_a_pod", 0)
        fewer.life.ask(suspend=True)
        fewer.life.cluster.advance(10)
        assert fewer.asked == 0
    finally:
        fewer.life.operator.close()


def test_a_group_that_waits_for_a_place_gets_the_one_of_a_group_that_goes() -> None:
    """One of three has a place, and it is not the first one."""
    where = scene(devices=2, nodes=2, replicas=3, groups=True, keda=True, wider=_APART)
    story = (("delete_a_pod", 6, 400), ("ask_for_replicas", 1, 400))
    assert broken(told(where, story)) is None


def test_room_in_a_quota_is_given_to_the_group_that_stays() -> None:
    fewer = Fewer()
    try:
        fewer.happens("limit_by_a_quota", "pods", -2)
        fewer.happens("delete_a_pod", 0)
        fewer.life.cluster.advance(100)
        assert fewer.serving == ["chat-1", "chat-2"]
        fewer.happens("ask_for_replicas", 1)
        assert fewer.asked == 1
        fewer.life.cluster.advance(400)
        assert fewer.serving == ["chat-0"]
    finally:
        fewer.life.operator.close()


def test_no_group_goes_for_one_that_a_policy_refuses() -> None:
    fewer = Fewer()
    try:
        fewer.happens("refuse_by_a_policy", (POD,))
        fewer.happens("delete_a_pod", 0)
        fewer.happens("ask_for_replicas", 1)
        fewer.life.cluster.advance(900)
        assert fewer.serving == ["chat-1", "chat-2"]
        fewer.happens("refuse_by_a_policy", ())
        fewer.life.cluster.advance(900)
        assert (fewer.asked, fewer.serving) == (1, ["chat-0"])
    finally:
        fewer.life.operator.close()
