"""Every RUN line of the ROCm image, executed against a stub of its base.

The image cannot be built here: it needs AMD's base and compiles for an hour. What the lines do with
what a base gives them is executed nevertheless: programs of the base are stubs that write down how
they were called, and folders of the image are folders of the test.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from devcluster.images.dockerfile import parse
from devcluster.settings import REPOSITORY

FILE = REPOSITORY / "images/engine/Dockerfile.rocm"
# Of the interpreter in the base image.
IMAGE = {"python_version": "3.12", "python_full_version": "3.12.3", "platform_machine": "x86_64"}
FOLDERS = ("/build", "/opt", "/var/lib/apt")
_PYTHON = """#!/bin/bash
echo "$(basename "$0") $*" >> "$CALLS"
case "$*" in
    "-m venv tools") mkdir -p tools/bin && cp "$0" tools/bin/pip ;;
    *"print(torch.__version__)"*) echo "${TORCH_VERSION:-2.10.0}" ;;
    *without_torch.py*) exec "$PYTHON" "$@" ;;
    wheel*) mkdir -p wheels && touch wheels/atom_platform-0.1.0-py3-none-any.whl ;;
esac
"""
_GIT = """#!/bin/bash
echo "git $*" >> "$CALLS"
if [ "$1" = init ]; then mkdir -p "${@: -1}"; fi
"""
_OTHER = """#!/bin/bash
echo "$(basename "$0") $*" >> "$CALLS"
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A root with the stubs, and what the file copies into /build."""
    programs = tmp_path / "bin"
    programs.mkdir()
    stubs = {"python3": _PYTHON, "git": _GIT}
    for name in ("python3", "git", "apt-get", "useradd"):
        (programs / name).write_text(stubs.get(name, _OTHER))
        (programs / name).chmod(0o755)
    for folder in FOLDERS:
        (tmp_path / folder.lstrip("/")).mkdir(parents=True)
    build = tmp_path / "build"
    for source in ("build-requirements.txt", "engine/rocm/install_aiter.sh",
                   "engine/rocm/install_project.sh", "engine/rocm/without_torch.py"):  # fmt: skip
        shutil.copy(REPOSITORY / "images" / source, build)
    shutil.copy(REPOSITORY / "requirements/engine.txt", build)
    (build / "project").mkdir()
    return tmp_path


def run_lines(image: Path, **environment: str) -> tuple[list[str], list[str]]:
    """What the lines called, in order, and the errors of those that failed."""
    arguments: dict[str, str] = {}
    calls, errors = image / "calls", []
    calls.touch()
    for stage in parse(FILE.read_text()).stages:
        for instruction in stage.instructions:
            if instruction.keyword == "ARG":
                name, _, value = instruction.text.partition("=")
                arguments[name] = value.strip('"')
            if instruction.keyword != "RUN":
                continue
            line = re.sub(r"\$\{(\w+)\}", lambda m: arguments[m.group(1)], instruction.text)
            for folder in FOLDERS:
                line = line.replace(folder, f"{image}{folder}")
            done = subprocess.run(
                ["bash", "-c", line],
                cwd=image / "build",
                env={
                    "PATH": f"{image / 'bin'}:{os.environ['PATH']}",
                    "CALLS": str(calls),
                    "PYTHON": sys.executable,
                    **environment,
                },
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                errors.append(done.stderr)
    return calls.read_text().splitlines(), errors


def test_every_line_runs_in_its_order(image: Path) -> None:
    calls, errors = run_lines(image)
    assert errors == []
    expected = [
        "git fetch --quiet --depth 1 origin ",
        "git submodule update",
        "python3 setup.py develop",
        "apt-get install",
        "useradd --uid 65532",
        "python3 without_torch.py engine.txt",
        "python3 -m pip install --no-cache-dir --no-deps --require-hashes",
        "pip wheel --no-deps",
        "python3 -m pip install --no-cache-dir --no-deps --no-index wheels/",
    ]
    found = [next(i for i, call in enumerate(calls) if want in call) for want in expected]
    assert found == sorted(found)
    assert not (image / "build/tools").exists()
    locked = (image / "build/engine-without-torch.txt").read_text()
    assert "fastapi==" in locked
    assert not re.search(r"^(torch|triton)==", locked, re.MULTILINE)


def test_a_base_without_rocm_ends_the_build(image: Path) -> None:
    python = image / "bin/python3"
    refusing = 'case "$*" in *sys.exit*) exit 1 ;; esac\ncase "$*" in'
    python.write_text(_PYTHON.replace('case "$*" in', refusing))
    _, errors = run_lines(image)
    assert "is not built for ROCm" in errors[0]


def test_what_is_installed_without_dependencies_has_all_that_it_needs() -> None:
    """pip resolves nothing there: the lock has it all, but for what AMD's base brings."""
    script = REPOSITORY / "images/engine/rocm/without_torch.py"
    lock = REPOSITORY / "requirements/engine.txt"
    kept = subprocess.run(
        [sys.executable, script, lock], capture_output=True, text=True, check=True
    ).stdout
    locked = map(Requirement, re.findall(r"^[\w.-]+==[^\n\\]+", kept, re.MULTILINE))
    pinned = {
        canonicalize_name(line.name): str(line.specifier).removeprefix("==")
        for line in locked
        if line.marker is None or line.marker.evaluate(IMAGE)
    }
    bases, unmet = set(), []
    for name in pinned:
        try:
            needs = importlib.metadata.distribution(name).requires or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform
        for need in map(Requirement, needs):
            wanted = canonicalize_name(need.name)
            if need.marker is not None and not need.marker.evaluate({"extra": ""} | IMAGE):
                continue
            if wanted not in pinned:
                bases.add(wanted)
            elif not need.specifier.contains(pinned[wanted]):
                unmet.append(f"{name} needs {need}, and {pinned[wanted]} is locked")
    assert not unmet
    assert bases <= {"torch", "triton"}  # the base's; not every lock has a package that needs them
