"""Old groups without a place take half of one that a rollout frees: those that serve stay."""

from __future__ import annotations

from itertools import product

import pytest

from tests.operator.lives.test_generated_life import broken, scene, told

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


@pytest.mark.parametrize(("devices", "replicas", "edit", "with_frontend"), DAILY)
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
