"""What is removed, and what is left alone: mounts, cgroups, kernel settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from devcluster.node import cgroups, kernel_settings, network
from devcluster.teardown import is_recorded, mounts_below

MOUNTINFO = """\
22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:5 / /state rw - tmpfs t rw
31 30 0:6 / /state/kubelet/a\\040b rw - tmpfs t rw
32 22 0:7 / /statement rw - tmpfs t rw
"""


def test_only_mounts_strictly_below_the_folder_are_found() -> None:
    assert mounts_below(Path("/state"), MOUNTINFO) == ["/state/kubelet/a b"]


@pytest.mark.parametrize(
    ("recorded", "found", "ours"),
    [
        ("02:00:00:00:00:01", "02:00:00:00:00:01", True),
        ("02:00:00:00:00:01", "02:00:00:00:00:02", False),
        ("02:00:00:00:00:01", None, False),
        (None, "02:00:00:00:00:01", False),
    ],
)
def test_a_link_is_ours_by_its_address_and_not_by_its_name(
    recorded: str | None,
    found: str | None,
    ours: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if recorded is not None:
        (tmp_path / "record").write_text(recorded)
    monkeypatch.setattr(network, "hardware_address", lambda link: found)
    assert is_recorded("atomdev0", tmp_path / "record") is ours


def controller(root: Path, name: str, cpus: str | None = None) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    if cpus is not None:
        (folder / "cpuset.cpus").write_text(cpus)
        (folder / "cpuset.mems").write_text("0")
    return folder


def test_version_1_gets_a_group_in_every_controller(tmp_path: Path) -> None:
    for name in ("cpu", "memory"):
        controller(tmp_path, name)
    cgroups.ensure("mine", tmp_path)
    cgroups.ensure("mine", tmp_path)
    assert all((tmp_path / name / "mine").is_dir() for name in ("cpu", "memory"))


def test_a_new_cpuset_takes_processes_at_once(tmp_path: Path) -> None:
    cpuset = controller(tmp_path, "cpuset", cpus="0-1\n")
    (cpuset / "mine").mkdir()
    for file in ("cpuset.cpus", "cpuset.mems"):
        (cpuset / "mine" / file).write_text("\n")  # as the kernel makes it
    cgroups.ensure("mine", tmp_path)
    assert (cpuset / "mine/cpuset.cpus").read_text() == "0-1\n"


def test_version_2_gets_one_group_with_every_controller_delegated(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    cgroups.ensure("mine", tmp_path)
    assert (tmp_path / "cgroup.subtree_control").exists()
    assert (tmp_path / "mine/cgroup.subtree_control").exists()
    assert cgroups.hierarchies(tmp_path) == [tmp_path]


def test_removal_takes_the_whole_tree_and_nothing_beside_it(tmp_path: Path) -> None:
    for name in ("cpu", "unified"):
        (controller(tmp_path, name) / "mine/kubepods/pod1").mkdir(parents=True)
        (tmp_path / name / "others").mkdir()
    assert cgroups.remove("mine", tmp_path) == []
    assert not (tmp_path / "cpu/mine").exists()
    assert not (tmp_path / "unified/mine").exists()
    assert (tmp_path / "cpu/others").exists()


def test_a_group_that_cannot_be_removed_is_reported(tmp_path: Path) -> None:
    pod = controller(tmp_path, "cpu") / "mine/pod1"
    pod.mkdir(parents=True)
    (pod / "file").touch()  # stands for a process: rmdir refuses
    assert pod in cgroups.remove("mine", tmp_path)


def proc_sys(root: Path, **values: str) -> None:
    for name, value in values.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value + "\n")


def test_kernel_settings_are_put_back(tmp_path: Path) -> None:
    proc_sys(tmp_path / "sys", vm__overcommit_memory="0", kernel__panic="0")
    kernel_settings.remember(tmp_path / "saved.json", tmp_path / "sys")
    proc_sys(tmp_path / "sys", vm__overcommit_memory="1", kernel__panic="10")  # by the kubelet
    kernel_settings.restore(tmp_path / "saved.json", tmp_path / "sys")
    assert (tmp_path / "sys/vm/overcommit_memory").read_text().strip() == "0"
    assert (tmp_path / "sys/kernel/panic").read_text().strip() == "0"


def test_a_kernel_setting_that_someone_else_changed_stays(tmp_path: Path) -> None:
    proc_sys(tmp_path / "sys", kernel__panic="0")
    kernel_settings.remember(tmp_path / "saved.json", tmp_path / "sys")
    proc_sys(tmp_path / "sys", kernel__panic="30")
    kernel_settings.restore(tmp_path / "saved.json", tmp_path / "sys")
    assert (tmp_path / "sys/kernel/panic").read_text().strip() == "30"
