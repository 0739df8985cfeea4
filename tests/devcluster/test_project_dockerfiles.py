"""The project's own Dockerfiles and their scripts, checked as far as that is possible without
building.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from devcluster.images.dockerfile import (
    Dockerfile,
    IgnoreRules,
    context_files,
    copied_sources,
    parse,
)
from devcluster.settings import REPOSITORY

IMAGES = REPOSITORY / "images"
DOCKERFILES = sorted(p for p in IMAGES.rglob("Dockerfile*") if p.is_file())
SCRIPTS = sorted(IMAGES.rglob("*.sh"))
ROCM = IMAGES / "engine/rocm"


def read(path: Path) -> Dockerfile:
    return parse(path.read_text(encoding="utf-8"))


def named(path: Path) -> str:
    return path.relative_to(IMAGES).as_posix()


def test_every_image_of_the_project_is_here() -> None:
    assert {named(p) for p in DOCKERFILES} == {
        "operator/Dockerfile",
        "engine/Dockerfile.cpu",
        "engine/Dockerfile.rocm",
    }


@pytest.mark.parametrize("path", DOCKERFILES, ids=named)
def test_what_is_copied_exists_and_is_not_ignored(path: Path) -> None:
    rules = IgnoreRules((REPOSITORY / ".dockerignore").read_text(encoding="utf-8"))
    for source in copied_sources(read(path).stages):
        assert context_files(REPOSITORY, [source], rules), f"{source} is empty or ignored"


@pytest.mark.parametrize("path", DOCKERFILES, ids=named)
def test_bases_are_stages_or_full_names_with_a_digest(path: Path) -> None:
    file = read(path)
    names = {stage.name for stage in file.stages}
    defaults = dict(argument.split("=", 1) for argument in file.arguments)
    for stage in file.stages:
        base = re.sub(r"\$\{(\w+)\}", lambda m: defaults[m.group(1)], stage.base)
        if base not in names:
            digest = "@sha256:[0-9a-f]{64}"
            assert re.fullmatch(rf"[a-z.]+\.[a-z]+/[a-z0-9/_-]+:[\w.-]+{digest}", base), base


@pytest.mark.parametrize(
    ("path", "target"),
    [
        (IMAGES / "operator/Dockerfile", "operator"),
        (IMAGES / "engine/Dockerfile.cpu", "thin"),
        (IMAGES / "engine/Dockerfile.cpu", "runtime"),
        (IMAGES / "engine/Dockerfile.rocm", "runtime"),
    ],
)
def test_an_image_runs_as_a_numbered_ordinary_user(path: Path, target: str) -> None:
    file = read(path)
    stage = file.stage(target)
    users: list[str] = []
    while stage is not None:
        users = [i.text for i in stage.instructions if i.keyword == "USER"] + users
        stage = file.stage(stage.base)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])


@pytest.mark.parametrize("path", DOCKERFILES, ids=named)
def test_programs_that_ask_for_a_user_name_get_one(path: Path) -> None:
    variables = [i.text for s in read(path).stages for i in s.instructions if i.keyword == "ENV"]
    assert any("LOGNAME=" in text for text in variables)


@pytest.mark.parametrize("path", DOCKERFILES, ids=named)
def test_locked_requirements_are_installed_with_their_hashes(path: Path) -> None:
    for stage in read(path).stages:
        for instruction in stage.instructions:
            for command in instruction.text.split("&&"):
                if "pip" in command and "--requirement" in command:
                    assert "--require-hashes" in command, command


@pytest.mark.parametrize("path", SCRIPTS, ids=named)
def test_scripts_parse_and_stop_at_the_first_failure(path: Path) -> None:
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "set -euo pipefail" in path.read_text(encoding="utf-8")


def test_the_rocm_image_keeps_the_torch_of_its_base() -> None:
    lock = REPOSITORY / "requirements/engine.txt"
    done = subprocess.run(
        [sys.executable, ROCM / "without_torch.py", lock],
        capture_output=True,
        text=True,
        check=True,
    )
    before = set(re.findall(r"^([a-z0-9._-]+)==", lock.read_text(), re.MULTILINE))
    after = set(re.findall(r"^([a-z0-9._-]+)==", done.stdout, re.MULTILINE))
    removed = before - after
    assert {"torch", "triton"} <= removed
    assert all(re.match(r"torch|triton|nvidia-|cuda-", name) for name in removed)
    assert {"fastapi", "safetensors", "msgspec"} <= after
    assert all("--hash=sha256:" in entry for entry in re.split(r"\n(?=\S)", done.stdout.strip()))


def test_the_thin_image_takes_its_hub_client_from_the_lock() -> None:
    (names,) = [
        i.text.partition("=")[2].strip('"').split()
        for s in read(IMAGES / "engine/Dockerfile.cpu").stages
        for i in s.instructions
        if i.keyword == "ARG" and i.text.startswith("HUB_CLIENT=")
    ]
    script, lock = IMAGES / "engine/cpu/only_packages.py", REPOSITORY / "requirements/engine.txt"
    done = subprocess.run(
        [sys.executable, script, lock, *names], capture_output=True, text=True, check=True
    )
    entries = re.split(r"\n(?=\S)", done.stdout.strip())
    assert [entry.split("==")[0] for entry in entries] == names
    assert all("--hash=sha256:" in entry for entry in entries)
    wrong = subprocess.run(
        [sys.executable, script, lock, "no-such"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode != 0
    assert "not in the lock: no-such" in wrong.stderr


def test_the_rocm_image_pins_aiter_to_a_commit() -> None:
    arguments = [
        i.text
        for s in read(IMAGES / "engine/Dockerfile.rocm").stages
        for i in s.instructions
        if i.keyword == "ARG"
    ]
    commits = [text.partition("=")[2] for text in arguments if text.startswith("AITER_COMMIT=")]
    assert len(commits) == 1
    assert re.fullmatch(r"[0-9a-f]{40}", commits[0])


@pytest.mark.parametrize("script", ["install_aiter.sh", "install_project.sh"])
def test_a_script_without_its_argument_says_how_it_is_used(script: str) -> None:
    done = subprocess.run(["bash", ROCM / script], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"usage: {script}" in done.stderr
