"""Every way in which something names a folder of a claim keeps it, and nothing else does."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.plan.volume_claims.kept_weights import (
    folders_named,
    foreign_readers,
)
from atom_operator.reconcile.weights_on_claim import folders_of_specs
from tests.support.operator.builders_operator import parsed


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("/models/weights/Qwen--Qwen3-8B/main", "Qwen--Qwen3-8B/main"),
        ("/models/weights/Qwen--Qwen3-8B/main/", "Qwen--Qwen3-8B/main"),
        ("pvc://weights/llama", "llama"),
        ("pvc://weights", "."),
        ("/models/weights", "."),
        ("sql=/models/weights/adapters/sql", "adapters/sql"),
        ("/models/weights-2/llama", None),
        ("pvc://other/llama", None),
        ("hf://weights/llama", None),
        ("/data/models/weights/llama", None),
    ],
)
def test_a_folder_is_named_by_its_path_or_by_pvc(text: str, folder: str | None) -> None:
    found = folders_named("weights", [{"args": ["--model", text]}])
    assert found == ({folder} if folder is not None else set())


@pytest.mark.parametrize(
    ("model", "folder"),
    [
        ({"source": "hf://Qwen/Qwen3-8B"}, "Qwen--Qwen3-8B/main"),
        ({"source": "hf://Qwen/Qwen3-8B", "revision": "a/b"}, "Qwen--Qwen3-8B/a-b"),
        ({"source": "s3://bucket/llama/1"}, "s3--bucket--llama--1/main"),
    ],
)
def test_a_spec_keeps_what_it_has_had_downloaded(model: dict[str, Any], folder: str) -> None:
    cached = parsed(model=model, cache={"weights": {"claim": "weights"}})
    elsewhere = parsed(model=model, cache={"weights": {"claim": "other"}})
    alone = parsed(model=model)
    assert folders_of_specs("weights", [cached, elsewhere, alone]) == {folder}


def test_pods_of_others_that_mount_the_claim_are_named() -> None:
    def pod(name: str, claim: str, **labels: str) -> dict[str, Any]:
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": claim}}
        return {"metadata": {"name": name, "labels": labels}, "spec": {"volumes": [volume]}}

    found = foreign_readers(
        "weights",
        [
            pod("engine", "weights", **{"serving.atom.dev/deployment": "chat"}),
            pod("download", "weights", **{"serving.atom.dev/job-for": "chat"}),
            pod("notebook", "weights"),
            pod("elsewhere", "other"),
            {"metadata": {"name": "plain"}, "spec": {}},
        ],
    )
    assert found == ("notebook",)


@pytest.mark.parametrize(
    ("mount", "folders"),
    [
        ({"mountPath": "/models/weights"}, set()),
        ({"mountPath": "/data"}, {"."}),
        ({"mountPath": "/data", "subPath": "acme/llama/"}, {"acme/llama"}),
        ({"mountPath": "/models/weights", "subPathExpr": "$(NAME)"}, {"$(NAME)"}),
        ({"name": "tmp", "mountPath": "/data"}, set()),
    ],
)
def test_a_mount_at_its_usual_place_uses_nothing_by_itself(
    mount: dict[str, str], folders: set[str]
) -> None:
    volumes = [{"name": "m", "persistentVolumeClaim": {"claimName": "weights"}}, {"name": "tmp"}]
    containers = [{"name": "engine", "volumeMounts": [{"name": "m", **mount}]}]
    pod = {"spec": {"containers": containers, "volumes": volumes}}
    assert folders_named("weights", [pod]) == folders
    assert folders_named("weights", [{"spec": {"template": pod}}]) == folders


def test_what_a_download_is_told_of_others_uses_nothing() -> None:
    command = ["--folder", "/models/weights/a/main", "--claim-root", "/models/weights"]
    told = [*command, "--keep", "pvc://weights/b", "--keep", "/models/weights/c/main"]
    assert folders_named("weights", [{"command": told}]) == {"a/main"}
