"""--batch-dir in spec.engine.extraArgs: pods that share the folder may keep batches
in it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from atom_operator.constants import ENGINE_CONTAINER
from atom_operator.validation.rules import validate
from tests.support.operator.builders_operator import parsed

FOLDER = "/var/lib/atom/batches"
CLAIM = {"persistentVolumeClaim": {"claimName": "batches"}}
ONE: dict[str, Any] = {"replicas": 1, "rollout": {"strategy": "Recreate"}}
# Each change that lets several pods answer for the folder, and what names it.
SEVERAL: dict[str, dict[str, Any]] = {
    "spec.replicas": {"replicas": 2},
    "spec.autoscaling": {"autoscaling": {"maxReplicas": 2}},
}
OWN_VOLUMES: list[dict[str, Any]] = [
    {"emptyDir": {}},
    {"hostPath": {"path": "/data"}},
    {"ephemeral": {"volumeClaimTemplate": {}}},
]
SHARED_VOLUMES = [CLAIM, {"nfs": {"server": "files", "path": "/"}}, {"csi": {"driver": "a"}}]


def template(path: str = "/var/lib/atom", volume: Any = CLAIM, **mount: Any) -> dict[str, Any]:
    mounts = [{"name": "kept", "mountPath": path, **mount}]
    container = {"name": ENGINE_CONTAINER, "volumeMounts": mounts}
    return {"spec": {"containers": [container], "volumes": [{"name": "kept", **volume}]}}


def problems(
    overlay: dict[str, Any] | None, words: tuple[str, ...] = ("--batch-dir", FOLDER), **spec: Any
) -> list[str]:
    asked = parsed(template=overlay, engine={"extraArgs": [*words]}, **{**ONE, **spec})
    return [each.message for each in validate(asked) if "extraArgs" in each.field]


@pytest.mark.parametrize("words", [("--batch-dir", FOLDER), (f"--batch_dir={FOLDER}",)])
@pytest.mark.parametrize("path", [FOLDER, "/var/lib/atom"])
def test_a_folder_of_a_volume_is_accepted(path: str, words: tuple[str, ...]) -> None:
    assert problems(template(path), words) == []


@pytest.mark.parametrize(
    "overlay",
    [None, template("/var/lib/atom/batches/below"), template("/data"), template(readOnly=True)],
)
def test_a_folder_without_a_volume_is_refused(overlay: dict[str, Any] | None) -> None:
    (told,) = problems(overlay)
    assert told.startswith("--batch-dir needs a volume")
    assert "spec.template" in told


CHANGES = [*itertools.combinations(SEVERAL, 1), *itertools.combinations(SEVERAL, 2)]


@pytest.mark.parametrize("fields", CHANGES, ids=str)
@pytest.mark.parametrize("volume", OWN_VOLUMES, ids=lambda volume: next(iter(volume)))
def test_a_volume_of_one_pod_is_refused_for_several_by_field(
    volume: dict[str, Any], fields: tuple[str, ...]
) -> None:
    changes = {key: value for name in fields for key, value in SEVERAL[name].items()}
    (told,) = problems(template(volume=volume), **changes)
    assert all((name in told) == (name in fields) for name in SEVERAL)
    assert next(iter(volume)) in told
    assert "ReadWriteMany" in told


@pytest.mark.parametrize("fields", CHANGES, ids=str)
@pytest.mark.parametrize("volume", SHARED_VOLUMES, ids=lambda volume: next(iter(volume)))
def test_a_shared_volume_is_accepted_for_several_pods(
    volume: dict[str, Any], fields: tuple[str, ...]
) -> None:
    changes = {key: value for name in fields for key, value in SEVERAL[name].items()}
    assert problems(template(volume=volume), **changes) == []


@pytest.mark.parametrize("volume", [*OWN_VOLUMES, *SHARED_VOLUMES], ids=str)
def test_pods_of_two_revisions_may_have_any_volume(volume: dict[str, Any]) -> None:
    assert problems(template(volume=volume), rollout={"strategy": "Surge"}) == []


def test_pods_that_are_reached_through_others_keep_no_batches() -> None:
    (told,) = problems(template(), frontend={})
    assert "leave out spec.frontend" in told
