"""What `up` decides from what it finds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from devcluster.cluster import Action, StatusInputs, decide, fingerprint
from devcluster.node import configs
from devcluster.node.components import Component, all_components
from devcluster.settings import Settings

PROGRAMS = {
    name: Path(f"/cache/{name}-v1")
    for name in (
        "etcd",
        "containerd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kubelet",
        "kube-proxy",
    )
}
SETTINGS = Settings(cache=Path("/cache"), state=Path("/state"))


def components() -> list[Component]:
    return all_components(SETTINGS, PROGRAMS, "dev-node")


@pytest.mark.parametrize(
    ("situation", "action"),
    [
        (StatusInputs(running=False, state_exists=False, fingerprint=None), Action.CREATE),
        (StatusInputs(running=False, state_exists=True, fingerprint="same"), Action.CREATE),
        (StatusInputs(running=True, state_exists=True, fingerprint="same"), Action.KEEP),
        (StatusInputs(running=True, state_exists=True, fingerprint="other"), Action.RECREATE),
        (StatusInputs(running=True, state_exists=False, fingerprint=None), Action.RECREATE),
    ],
)
def test_up_keeps_only_a_running_cluster_of_the_same_configuration(
    situation: StatusInputs, action: Action
) -> None:
    assert decide(situation, "same")[0] is action


def test_starting_anew_is_explained_and_a_first_start_is_not() -> None:
    assert decide(StatusInputs(False, False, None), "same")[1] == ""
    assert "crash" in decide(StatusInputs(False, True, "same"), "same")[1]
    assert "another version" in decide(StatusInputs(True, True, "old"), "same")[1]


def test_the_fingerprint_ignores_where_programs_are_cached() -> None:
    moved = [
        dataclasses.replace(c, argv=(c.argv[0].replace("/cache", "/elsewhere"), *c.argv[1:]))
        for c in components()
    ]
    assert fingerprint(components(), {}) == fingerprint(moved, {})


def test_the_fingerprint_changes_with_versions_flags_and_files() -> None:
    base = components()
    first = base[0]
    newer = dataclasses.replace(first, argv=("/cache/etcd-v2", *first.argv[1:]))
    flagged = dataclasses.replace(first, argv=(*first.argv, "--more"))
    prints = {
        fingerprint(base, {}),
        fingerprint([newer, *base[1:]], {}),
        fingerprint([flagged, *base[1:]], {}),
        fingerprint(base, {"kubelet.json": configs.kubelet_config(SETTINGS)}),
    }
    assert len(prints) == 4


def test_components_come_after_components_that_exist_and_never_in_a_circle() -> None:
    started: set[str] = set()
    waiting = components()
    while waiting:
        ready = [c for c in waiting if set(c.after) <= started]
        assert ready, f"nothing can start of {[c.name for c in waiting]}"
        started |= {c.name for c in ready}
        waiting = [c for c in waiting if c not in ready]


def test_whatever_others_wait_for_has_a_probe() -> None:
    waited_for = {name for c in components() for name in c.after}
    assert all(c.probe is not None for c in components() if c.name in waited_for)
