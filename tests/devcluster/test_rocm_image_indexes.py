"""Every package that the ROCm image installs, looked up where its build would get it: a file for
the base's interpreter with the locked hash, and the programs of its distribution."""

from __future__ import annotations

import lzma
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from devcluster.settings import REPOSITORY

pytestmark = pytest.mark.slow

RECIPE = (REPOSITORY / "images/engine/Dockerfile.rocm").read_text()
WITHOUT_TORCH = REPOSITORY / "images/engine/rocm/without_torch.py"
# Of the base: what its tag says.
UBUNTU = {"24.04": "noble"}
INDEX = "http://archive.ubuntu.com/ubuntu/dists/{name}/{part}/binary-amd64/Packages.xz"


def base() -> tuple[str, str]:
    """Ubuntu's release and Python's version."""
    found = re.search(r"_ubuntu([\d.]+)_py([\d.]+)_", RECIPE)
    assert found is not None
    return UBUNTU[found[1]], found[2]


def look_up(lock: Path, folder: Path) -> str:
    """What pip would install there of a lock. uv asks the index for metadata alone."""
    python = base()[1]
    command = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--dry-run"]
    command += ["--no-deps", "--require-hashes", "--only-binary=:all:", f"--target={folder}"]
    command += [f"--python-version={python}", "--python-platform=x86_64-manylinux_2_39"]
    done = subprocess.run(
        [*command, "--requirement", str(lock)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def pins(lock: str) -> set[tuple[str, str]]:
    return set(re.findall(r"^([\w.-]+)==([^\s;\\]+)", lock, re.MULTILINE))


def test_the_index_has_every_pinned_package_for_the_bases_python(tmp_path: Path) -> None:
    locked = subprocess.run(
        [sys.executable, WITHOUT_TORCH, REPOSITORY / "requirements/engine.txt"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    (tmp_path / "engine.txt").write_text(locked)
    found = pins(re.sub(r"^ \+ ", "", look_up(tmp_path / "engine.txt", tmp_path), flags=re.M))
    assert {"fastapi", "transformers", "pyzmq"} <= {name for name, _ in found}
    assert found <= pins(locked)
    look_up(REPOSITORY / "images/build-requirements.txt", tmp_path)


def test_a_version_that_the_index_lacks_is_told(tmp_path: Path) -> None:
    lock = tmp_path / "wrong.txt"
    lock.write_text(f"fastapi==0.0.0.1 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(AssertionError, match=r"fastapi==0\.0\.0\.1"):
        look_up(lock, tmp_path)


def test_the_distribution_has_what_apt_is_asked_for() -> None:
    asked = re.findall(r"apt-get install --yes --no-install-recommends ([\w -]+?) *\\\n", RECIPE)
    wanted = {name for line in asked for name in line.split()}
    assert wanted
    there: set[str] = set()
    for part in ("main", "universe"):
        url = INDEX.format(name=base()[0], part=part)
        with urllib.request.urlopen(url, timeout=120) as answer:
            text = lzma.decompress(answer.read()).decode()
        there |= set(re.findall(r"^Package: (\S+)$", text, re.MULTILINE))
    assert wanted <= there
