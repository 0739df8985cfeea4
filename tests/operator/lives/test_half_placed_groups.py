"""Groups that have a part of their nodes: those that serve stay, and none waits for another half.

Old groups without a place take half of one that a rollout frees. Groups that begin together may
each get the half that another one needs; then one of them gives its pods back.
"""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, EVENT
from tests.operator.lives.test_generated_life import broken, scene, told
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.operator.builders_operator import atom_deployment, gpu_node
from tests.support.operator_life.happenings import HAPPENINGS, SPOILT
from tests.support.operator_life.life import Life

_PRESSURE = ("put_a_node_under_pressure", 1, "disk-pressure", 20)
_TYPO, _BAD = "registry.test/atom:typo", "registry.test/atom:bad"
EDITS = {
    "good": (("ask_for_a_length", 512, 1300),),
    "one after the other": (("ask_for_a_length", 512, 100), ("ask_for_a_length", 1024, 1300)),
    "bad": (("ask_for_an_image", _BAD, 1300),),
    "typo": (("ask_for_an_image", _TYPO, 1300),),
    "taken back": (("ask_for_an_image", _TYPO, 100), ("roll_back_the_spec", 1300)),
}
CASES = list(product((1, 2, 4), (2, 3, 4), EDITS, (False, True)))
DAILY = [case for number, case in enumerate(CASES) if number % 11 == 0]
DAILY.append((2, 4, "good", False))


def roll_out(devices: int, replicas: int, edit: str, with_frontend: bool) -> None:
    where = scene(devices=devices, nodes=2, replicas=replicas, groups=True)
    frontend = (("ask_for_a_frontend", 2, 1),) if with_frontend else ()
    assert broken(told(where, (_PRESSURE, *frontend, *EDITS[edit]))) is None


# Each edit, with a frontend and without one; DAILY has each twice.
SHORT = [DAILY[-1], DAILY[2], DAILY[4], DAILY[7], DAILY[8]]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("devices", "replicas", "edit", "with_frontend"),
    [pytest.param(*one, marks=() if one in SHORT else pytest.mark.whole) for one in DAILY],
)
def test_groups_that_serve_stay_beside_half_placed_ones(
    devices: int, replicas: int, edit: str, with_frontend: bool
) -> None:
    roll_out(devices, replicas, edit, with_frontend)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "replicas", "edit", "with_frontend"), [one for one in CASES if one not in DAILY]
)
def test_groups_that_serve_stay_beside_half_placed_ones_in_all_cases(
    devices: int, replicas: int, edit: str, with_frontend: bool
) -> None:
    roll_out(devices, replicas, edit, with_frontend)


SIZES = list(product((1, 2, 4, 8), (1, 2, 3, 4, 5), (2, 3, 4, 5)))
FEW_SIZES = [(8, 2, 2), (8, 4, 4), (4, 1, 2), (8, 3, 5), (2, 1, 5)]


def begin_together(devices: int, nodes: int, replicas: int, **changes: Any) -> None:
    """As many groups serve as the nodes have room for, after a beginning and after an edit."""
    whole = min(replicas, nodes * (8 // devices) // 2)
    life = Life(scene(devices=devices, nodes=nodes, replicas=replicas, groups=True, **changes))
    try:
        life.cluster.advance(200 + 200 * replicas)
        assert len(life.promises._serving()) == whole
        life.engine(maxModelLen=512)
        life.cluster.advance(2000)
        assert len(life.promises._serving()) == whole
    finally:
        life.operator.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("devices", "nodes", "replicas"), FEW_SIZES)
def test_groups_that_begin_together_do_not_wait_for_each_other(
    devices: int, nodes: int, replicas: int
) -> None:
    begin_together(devices, nodes, replicas)


@pytest.mark.slow
@pytest.mark.parametrize("claimed", [False, True], ids=["plugin", "claims"])
@pytest.mark.parametrize(("devices", "nodes", "replicas"), SIZES)
def test_groups_of_any_size_do_not_wait_for_each_other(
    devices: int, nodes: int, replicas: int, claimed: bool
) -> None:
    begin_together(devices, nodes, replicas, claimed=claimed)


HELD_BACK: dict[str, tuple[Any, ...]] = {
    "an argument of the operator's": ("ask_for_what_is_refused",),
    "a profile that cannot be read": ("change_the_profile", SPOILT),
}


@pytest.mark.sampled(2)
@pytest.mark.singles
@pytest.mark.parametrize("why", HELD_BACK)
@pytest.mark.parametrize(("devices", "nodes", "replicas"), FEW_SIZES)
def test_groups_do_not_wait_for_each_other_while_the_spec_is_held_back(
    devices: int, nodes: int, replicas: int, why: str
) -> None:
    whole, (name, *arguments) = min(replicas, nodes * (8 // devices) // 2), HELD_BACK[why]
    life = Life(scene(devices=devices, nodes=nodes, replicas=replicas, groups=True))
    try:
        life.cluster.advance(1)
        HAPPENINGS[name].does(life, *arguments)
        life.cluster.advance(200 + 200 * replicas)
        assert len(life.promises._serving()) == whole
    finally:
        life.operator.close()


def test_groups_of_a_rollback_do_not_wait_for_each_other_either() -> None:
    """Three groups are gone back to at once, on the node that is left."""
    where = scene(devices=4, nodes=2, replicas=3, groups=True, gitops=True)
    fails = (("drain_a_node", 0, 20), ("change_the_profile", "2", 400))
    assert broken(told(where, (*fails, ("ask_for_what_is_refused", 1300)))) is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fault", ["lose_a_node", "drain_a_node", "put_a_node_under_pressure"])
def test_a_group_does_not_give_back_a_place_that_no_other_can_have(fault: str) -> None:
    """The judge holds that each eviction is of use, and that a wait ends where one would be."""
    where = scene(devices=8, nodes=3, replicas=3, groups=True)
    argument = (1, "disk-pressure") if "pressure" in fault else (1,)
    assert broken(told(where, ((fault, *argument, 1300), ("ask_for_replicas", 2, 1300)))) is None


class Two:
    """`first` and, a minute later, `second`: one group each, on two nodes of one pod each."""

    def __init__(self, *priorities: int) -> None:
        self.cluster = InMemoryCluster(nodes=[gpu_node("a"), gpu_node("b")])
        self.operator = OperatorClient(self.cluster)
        for name, priority in zip(("first", "second"), priorities, strict=True):
            spec: dict[str, Any] = {"model": {"source": "hf://Qwen/Qwen3-8B"}, "replicas": 1}
            spec |= {"accelerator": {"type": "amd", "product": "MI300X"}}
            spec |= {"parallelism": {"tensor": 16, "nodes": 2}}
            spec |= {"template": {"spec": {"priority": priority}}} if priority else {}
            self.cluster.api.create(ATOM_DEPLOYMENT, atom_deployment(name, **spec))
        self.cluster.advance(1000)

    @property
    def serving(self) -> list[str]:
        return [name for name in ("first", "second") if self.cluster.serving(name)]

    @property
    def gave_back(self) -> list[str]:
        objects = self.cluster.api.objects.items()
        events = [item for (kind, _, _), item in objects if kind == EVENT]
        found = [item for item in events if item["reason"] == "GroupGaveBack"]
        return sorted({item["involvedObject"]["name"] for item in found})


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("first", "second"), [(0, 0), (5, 5), *combinations((9, 5, 0), 2)])
def test_of_two_deployments_the_one_of_lower_priority_and_then_the_younger_gives_back(
    first: int, second: int
) -> None:
    two = Two(first, second)
    try:
        assert two.serving == ["first"]
        assert two.gave_back == ["second"]
    finally:
        two.operator.close()


def test_a_younger_group_of_higher_priority_keeps_its_pods() -> None:
    two = Two(0, 5)
    try:
        assert two.serving == ["second"]
        assert two.gave_back == ["first"]
    finally:
        two.operator.close()
