"""A group that fails and is made anew is told of steadily, whichever others serve meanwhile, and no
longer than until all that have a node serve."""

from __future__ import annotations

import pytest

from tests.operator.lives.test_generated_life import broken, scene, told
from tests.support.operator_life.happenings import HAPPENINGS
from tests.support.operator_life.life import Life

_BAD = ("ask_for_an_image", "registry.test/atom:bad", 1300)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("also", [(), (("delete_a_pod", 1, 1),)])
def test_groups_that_fail_beside_others_flap_in_no_condition(
    replicas: int, also: tuple[tuple[str, int, int], ...]
) -> None:
    where = scene(devices=2, nodes=2, groups=True)
    assert broken(told(where, (("ask_for_replicas", replicas, 400), *also, _BAD))) is None


def test_a_failure_is_not_told_of_groups_that_wait_for_a_node() -> None:
    life = Life(scene(devices=8, nodes=2, groups=True))
    try:
        life.cluster.advance(400)
        for name, argument, seconds in (("delete_a_pod", 1, 5), ("ask_for_replicas", 2, 400)):
            HAPPENINGS[name].does(life, argument)
            life.cluster.advance(seconds)
            assert life.parent is not None
            said = {item["type"]: item for item in life.parent["status"]["conditions"]}
            failing = name == "delete_a_pod"
            assert said["Degraded"]["status"] == str(failing)
        assert said["Scheduled"]["status"] == "False"
        assert len(life.cluster.serving("chat")) == 1
    finally:
        life.operator.close()
