"""Generated lives in which rollouts wait for a window or a turn hold what the documents promise."""

from __future__ import annotations

import pytest

from atom_operator.reconcile import rollout_turn
from tests.operator.lives.test_generated_life import broken, scene, told
from tests.support.operator_life.closed import CLOSED_HAPPENINGS, draw_closed_story
from tests.support.operator_life.lives import broken_seed

# 6000059: an edited profile waits for its turn, and then for its window. 5000285: the Deployment is
# deleted while a change waits for its window. 8000044: a group moves off sick devices, and a
# part of it is still ready when the change begins.
DAILY = (0, 1)
MORE = (5000285, 6000059, 8000044)


@pytest.mark.parametrize(
    "seed", [*DAILY, *(pytest.param(seed, marks=pytest.mark.whole) for seed in MORE)]
)
def test_lives_of_closed_windows_hold_what_the_documents_promise(seed: int) -> None:
    found = broken_seed("closed", seed)
    assert found is None, str(found)


def test_windows_and_turns_meet_every_other_kind_of_happening() -> None:
    met: set[str] = set()
    for seed in range(800):
        names = {happening.name for happening in draw_closed_story(seed).happenings}
        if names & CLOSED_HAPPENINGS.keys():
            met |= names
    wanted = {
        *("ask_for_roles", "change_the_prefill_role", "ask_for_a_canary", "decide"),
        *("change_the_profile", "change_the_default_image", "upgrade_the_operator"),
        *("ask_for_a_frontend", "rename_the_model", "kill_the_operator", "set_targets"),
        *CLOSED_HAPPENINGS,
    }
    assert wanted <= met


def test_the_judge_tells_of_a_rollout_outside_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_turn, "window_wait", lambda _asked, _now: None)
    steps = (("ask_for_a_window", 600, 60, 20), ("ask_for_a_length", 512, 400))
    found = broken(told(scene(devices=4), steps))
    assert found is not None
    assert "pods of chat that serve are replaced while no rollout may begin" in found


def test_the_judge_tells_of_a_rollout_before_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atom_operator.reconcile.rollout_train.RolloutTrain.take", lambda *_: None)
    steps = (("let_others_hold_the_turn", 20), ("ask_for_a_length", 512, 400))
    found = broken(told(scene(devices=4), steps))
    assert found is not None
    assert "pods of chat that serve are replaced while no rollout may begin" in found


def test_the_judge_tells_of_a_profile_that_waits_unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_turn, "subject", lambda _defaults: "")
    steps = (("ask_for_a_window", 600, 60, 20), ("change_the_profile", "1", 400))
    found = broken(told(scene(devices=4), steps))
    assert found is not None
    assert "Ready is true, and sites are {None}" in found


def test_a_group_of_which_a_part_is_ready_is_none_that_a_window_keeps() -> None:
    where = scene(devices=2, nodes=2, groups=True)
    steps = (
        ("let_others_hold_the_turn", 20),
        ("ask_for_a_length", 512, 20),
        ("let_devices_fall_sick", 1, 8, "plugin", 1300),
    )
    assert broken(told(where, steps)) is None
