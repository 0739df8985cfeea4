"""A repository with all that a release reads, and of the packages a few modules only."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from devcluster.settings import REPOSITORY
from tools.release.source import Source, export

_WHOLE = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".dockerignore", "charts",
          "crds", "images", "requirements", "tools/release/kubectl-atom.sh",
          "examples/models/atom-tiny/config.json",
          "examples/models/atom-tiny-eyes/config.json", "engine/atom/__init__.py",
          "engine/atom/errors.py", "operator/atom_operator/__main__.py")  # fmt: skip
_DATE = "2026-11-01T12:00:00+01:00"
_SOMEBODY = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
for _role in ("AUTHOR", "COMMITTER"):
    _SOMEBODY |= {f"GIT_{_role}_NAME": "somebody", f"GIT_{_role}_EMAIL": "somebody@example.com",
                  f"GIT_{_role}_DATE": _DATE}  # fmt: skip


def git(folder: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=folder, env={"PATH": "/usr/bin:/bin", **_SOMEBODY}, check=True,
        capture_output=True, text=True,
    ).stdout  # fmt: skip


def small_repository(folder: Path) -> Path:
    """One commit, always the same for the same files."""
    for name in _WHOLE:
        source, copy = REPOSITORY / name, folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, copy)
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=one")


def exported(repository: Path, folder: Path) -> Source:
    folder.mkdir()
    return export(repository, folder)
