"""The cgroup below which all pods live: made before the kubelet starts, removed after the last pod
has ended.

Handles version 1 (a hierarchy per controller) and version 2 (one hierarchy).
"""

from __future__ import annotations

import os
from pathlib import Path

from devcluster.errors import DevclusterError

ROOT = Path("/sys/fs/cgroup")
VERSION_2_BESIDE_1 = "unified"  # has no controllers, but the container runtime makes groups in it


def is_version_2(root: Path = ROOT) -> bool:
    return (root / "cgroup.controllers").exists()


def hierarchies(root: Path = ROOT) -> list[Path]:
    if is_version_2(root):
        return [root]
    found = sorted(p for p in root.iterdir() if p.is_dir() and not p.is_symlink())
    if not found:
        raise DevclusterError(
            f"no cgroup controllers are mounted below {root}; mount the cgroup file systems first"
        )
    return found


def ensure(name: str, root: Path = ROOT) -> None:
    if is_version_2(root):
        controllers = (root / "cgroup.controllers").read_text().split()
        _delegate(root, controllers)
        (root / name).mkdir(exist_ok=True)
        _delegate(root / name, controllers)
        return
    for hierarchy in hierarchies(root):
        if hierarchy.name == VERSION_2_BESIDE_1:
            continue
        folder = hierarchy / name
        folder.mkdir(exist_ok=True)
        for file in (
            "cpuset.cpus",
            "cpuset.mems",
        ):  # empty in a new cpuset of version 1, which then takes no process
            if (folder / file).exists() and not (folder / file).read_text().strip():
                (folder / file).write_text((hierarchy / file).read_text())


def _delegate(folder: Path, controllers: list[str]) -> None:
    for controller in controllers:
        try:
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError:
            continue  # the kubelet names the controllers that it misses


def remove(name: str, root: Path = ROOT) -> list[Path]:
    """Removes the cgroup everywhere; what could not be removed is returned."""
    left = []
    for hierarchy in hierarchies(root):
        top = hierarchy / name
        if not top.exists():
            continue
        folders = [Path(folder) for folder, _, _ in os.walk(top, topdown=False)]
        for folder in folders:
            try:
                folder.rmdir()
            except OSError:
                left.append(folder)
    return left
