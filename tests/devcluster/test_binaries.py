"""Versions, names and pinning of what is built."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from devcluster.errors import DevclusterError
from devcluster.neighbours.registry import NEIGHBOURS
from devcluster.programs import binaries, llm_d_router

ALL_GROUPS = (
    *binaries.CLUSTER_GROUPS,
    *binaries.TOOL_GROUPS,
    binaries.KWOK,
    llm_d_router.GROUP,
    *(neighbour.group for neighbour in NEIGHBOURS.values()),
)


@pytest.mark.parametrize(
    ("group", "version"),
    [
        (binaries.KUBERNETES, "v1.34.4"),
        (binaries.ETCD, "v3.6.16"),
        (binaries.HELM, "v3.19.5"),
        (binaries.COREDNS, "v1.12.4"),
    ],
)
def test_a_version_comes_from_the_module_file(group: binaries.Group, version: str) -> None:
    build = binaries.plan_build(group, Path("/bin"))
    assert build.version == version
    assert all(f"-{version}-" in path.name for path in build.outputs.values())


@pytest.mark.parametrize("group", ALL_GROUPS, ids=lambda g: next(iter(g.programs)))
def test_every_module_with_dependencies_pins_them(group: binaries.Group) -> None:
    folder = binaries.GO_FOLDER / group.folder
    assert "require" not in (folder / "go.mod").read_text() or (folder / "go.sum").stat().st_size


def test_programs_of_different_groups_never_share_a_file() -> None:
    outputs = [p for g in ALL_GROUPS for p in binaries.plan_build(g, Path("/bin")).outputs.values()]
    assert len(outputs) == len(set(outputs))


@pytest.mark.parametrize("changed", ["go.mod", "go.sum", "main.go"])
def test_a_change_of_any_input_builds_anew(tmp_path: Path, changed: str) -> None:
    shutil.copytree(binaries.GO_FOLDER / "etcd", tmp_path / "etcd")
    before = binaries.plan_build(binaries.ETCD, Path("/bin"), tmp_path)
    with (tmp_path / "etcd" / changed).open("a") as file:
        file.write("\n// changed\n")
    after = binaries.plan_build(binaries.ETCD, Path("/bin"), tmp_path)
    assert before.outputs != after.outputs


def test_a_change_of_a_module_within_builds_anew(tmp_path: Path) -> None:
    group = llm_d_router.GROUP
    shutil.copytree(binaries.GO_FOLDER / group.folder, tmp_path / group.folder)
    before = binaries.plan_build(group, Path("/bin"), tmp_path)
    (inner, *_) = (tmp_path / group.folder).glob("*/**/*.go")
    inner.write_text(f"{inner.read_text()}\n// changed\n")
    assert before.outputs != binaries.plan_build(group, Path("/bin"), tmp_path).outputs


def test_a_build_without_some_parts_is_another_program() -> None:
    whole = binaries.plan_build(binaries.ETCD, Path("/bin"))
    part = binaries.plan_build(dataclasses.replace(binaries.ETCD, tags=("small",)), Path("/bin"))
    assert whole.outputs != part.outputs


def test_the_server_reports_its_version() -> None:
    flags = binaries.plan_build(binaries.KUBERNETES, Path("/bin")).linker_flags
    assert "k8s.io/component-base/version.gitVersion=v1.34.4" in flags
    assert "k8s.io/component-base/version.gitMinor=34" in flags


def test_a_module_file_without_the_module_is_an_error_with_the_remedy() -> None:
    with pytest.raises(DevclusterError, match=r"go get example\.org/thing@VERSION"):
        binaries.version_in("module x\n", "example.org/thing")


@pytest.mark.parametrize(
    ("client", "fits"),
    [
        ("v1.34.1", True),
        ("v1.33.0", True),
        ("v1.35.2", True),
        ("v1.32.4", False),
        ("v2.34.0", False),
        ("?", False),
    ],
)
def test_a_kubectl_fits_within_one_minor_version(client: str, fits: bool) -> None:
    assert binaries.within_skew(client, "v1.34.4") is fits
