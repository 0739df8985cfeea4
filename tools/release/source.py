"""One clean commit as a folder, and the version that all its parts agree on.

Everything of a release is made from the export, never from the checkout: what is not committed
cannot get in.
"""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from tools.release.errors import ReleaseError

CHART = Path("charts/atom-operator")
_HEADING = re.compile(r"^## (\S+).*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Source:
    """An exported commit. seconds: its time since 1970, which is the time of all that is made."""

    folder: Path
    commit: str
    seconds: int
    version: str

    @property
    def notes(self) -> str:
        """Read what the CHANGELOG says of this version, without the heading."""
        text = (self.folder / "CHANGELOG.md").read_text(encoding="utf-8")
        after = next(f.end() for f in _HEADING.finditer(text) if f.group(1) == self.version)
        following = _HEADING.search(text, after)
        return text[after : following.start() if following else None].strip()


def export(repository: Path, folder: Path, wanted: str | None = None) -> Source:
    """Export the checked-out commit to `folder`. wanted: the version, where it is to be that one.
    Raises `ReleaseError` where the checkout has changes, or its parts are of several versions."""
    changed = _git(repository, "status", "--porcelain").decode().splitlines()
    if changed:
        raise ReleaseError(
            f"the checkout {repository} has changes that no commit has ({len(changed)}, such as "
            f"{changed[0].strip()}): commit or remove them"
        )
    commit = _git(repository, "rev-parse", "HEAD").decode().strip()
    seconds = int(_git(repository, "show", "--no-patch", "--format=%ct", commit))
    with tarfile.open(fileobj=io.BytesIO(_git(repository, "archive", commit))) as archive:
        archive.extractall(folder, filter="data")
    return Source(folder, commit, seconds, _version(folder, wanted))


def _version(folder: Path, wanted: str | None) -> str:
    chart = yaml.safe_load((folder / CHART / "Chart.yaml").read_text(encoding="utf-8"))
    package = (folder / "engine/atom/__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', package, re.MULTILINE)
    changes = _HEADING.search((folder / "CHANGELOG.md").read_text(encoding="utf-8"))
    said = {
        "engine/atom/__init__.py": found and found.group(1),
        "Chart.yaml's version": chart["version"],
        "Chart.yaml's appVersion": chart["appVersion"],
        "the first heading of CHANGELOG.md": changes and changes.group(1),
    }
    if wanted is not None:
        said["the command"] = wanted
    versions = set(said.values())
    if len(versions) != 1 or None in versions:
        listed = ", ".join(f"{where} says {version}" for where, version in said.items())
        raise ReleaseError(f"a release has one version, and here {listed}: make them agree")
    return str(versions.pop())


def _git(repository: Path, *arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=repository, capture_output=True, check=False)
    if done.returncode:
        raise ReleaseError(
            f"git {arguments[0]} in {repository} failed: {done.stderr.decode().strip()}; a release "
            "is made in a clone of the repository"
        )
    return done.stdout
