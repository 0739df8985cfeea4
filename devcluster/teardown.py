"""Removes a cluster without a trace but the cache: processes, network, cgroups, kernel settings,
folders.

Ending the node process ends every process of the cluster; its mounts, network namespaces and links
live in namespaces that end with the last process. What remains for this module is to wait for that
and to remove files. It works from any state: never started, half started, crashed, already down.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.node import cgroups, kernel_settings, network, node_process
from devcluster.progress import Step
from devcluster.settings import Settings
from devcluster.shell import run

MADE_FOLDERS = "made-folders.json"
LINK_RECORD = "link-address"
VANISH_SECONDS = 20.0
POLL_SECONDS = 0.05


def down(settings: Settings) -> bool:
    """False when there was nothing to remove."""
    if node_process.find(settings) is None and not settings.state.exists():
        cgroups.remove(settings.name)
        return False
    remove_everything(settings)
    return True


def remove_everything(settings: Settings) -> None:
    with Step("end the cluster's processes and remove its state"):
        ended = node_process.end(settings)
        link = network.uplink(settings.instance).link
        _remove_link(link, ours=ended or is_recorded(link, settings.state / LINK_RECORD))
        if not _becomes_true(lambda: not cgroups.remove(settings.name)):
            left = ", ".join(str(path) for path in cgroups.remove(settings.name)[:3])
            raise DevclusterError(
                f"cgroups of the cluster still hold processes: {left}; see their cgroup.procs, end "
                "those, then run `down` again"
            )
        kernel_settings.restore(settings.state / "kernel-settings.json")
        _remove_made_folders(settings.state / MADE_FOLDERS)
        _remove_state(settings.state)


def is_recorded(link: str, record: Path) -> bool:
    """Return whether the link is the one that the cluster of this state folder made. After a crash
    nothing else tells it from that of a cluster with another state folder.
    """
    return record.exists() and record.read_text() == network.hardware_address(link)


def _remove_link(link: str, ours: bool) -> None:
    """Wait for the kernel, which removes the pair with the namespace some time after the last
    process; then remove it by name.
    """
    if ours and not _becomes_true(lambda: network.hardware_address(link) is None):
        run(["ip", "link", "del", link])


def _becomes_true(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + VANISH_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _remove_made_folders(record: Path) -> None:
    """Remove folders only when they are empty, and no other cluster has them as mount points."""
    if not record.exists() or node_process.any_running():
        return
    for folder in reversed(json.loads(record.read_text())):
        try:
            Path(folder).rmdir()
        except OSError:
            continue


def _remove_state(state: Path) -> None:
    mounts = mounts_below(state, Path("/proc/self/mountinfo").read_text())
    if mounts:
        raise DevclusterError(
            f"something is mounted below the state folder, at {mounts[0]}; unmount it, then run "
            "`down` again"
        )
    if state.exists():
        shutil.rmtree(state)


def mounts_below(folder: Path, mountinfo: str) -> list[str]:
    """Mount points strictly below a folder (proc(5): the fifth field, with octal escapes)."""
    points = [line.split()[4].encode().decode("unicode_escape") for line in mountinfo.splitlines()]
    return [
        point for point in points if Path(point) != folder and Path(point).is_relative_to(folder)
    ]
