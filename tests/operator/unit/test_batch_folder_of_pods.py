"""--batch-dir in spec.engine.extraArgs: pods that have the folder alone may keep batches in it."""

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
# Each change that lets several servers have the folder or answer for it, and what names it.
SEVERAL: dict[str, dict[str, Any]] = {
    "spec.replicas": {"replicas": 2},
    "spec.rollout.strategy": {"rollout": {"strategy": "Surge"}},
    "spec.autoscaling": {"autoscaling": {"maxReplicas": 2}},
    "spec.frontend": {"frontend": {}},
}


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


@pytest.mark.parametrize(
    "fields", [*itertools.combinations(SEVERAL, 1), *itertools.combinations(SEVERAL, 2)], ids=str
)
def test_several_servers_of_a_folder_are_refused_by_field(fields: tuple[str, ...]) -> None:
    changes = {key: value for name in fields for key, value in SEVERAL[name].items()}
    (told,) = problems(template(), **changes)
    assert all((name in told) == (name in fields) for name in SEVERAL if name != "spec.replicas")


def test_a_folder_that_ends_with_its_pod_may_be_beside_the_next_pods() -> None:
    own = template(volume={"emptyDir": {}})
    assert problems(own, rollout={"strategy": "Surge"}) == []
    assert problems(own, replicas=2)
