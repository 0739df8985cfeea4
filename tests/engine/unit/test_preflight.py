"""The device check, over folders that look like a node's /dev and /sys."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from atom import preflight
from atom.utils.kfd_topology import gfx_name

ROOT = Path(__file__).resolve().parents[3]


def node(root: Path, gfx_versions: dict[int, int], *, kfd: bool = True) -> Path:
    """A node whose container sees the render minors of `gfx_versions`; the host has one more."""
    (root / "dev/dri").mkdir(parents=True)
    if kfd:
        (root / "dev/kfd").touch()
    topology = root / "sys/class/kfd/kfd/topology/nodes"
    cpu = topology / "0"
    cpu.mkdir(parents=True)
    (cpu / "properties").write_text("cpu_cores_count 96\ngfx_target_version 0\n")
    for number, (minor, version) in enumerate({**gfx_versions, 199: 90402}.items(), start=1):
        if minor != 199:
            (root / f"dev/dri/renderD{minor}").touch()
            (root / f"dev/dri/card{number}").touch()
        (topology / str(number)).mkdir()
        (topology / str(number) / "properties").write_text(
            f"simd_count 1216\ngfx_target_version {version}\ndrm_render_minor {minor}\n"
        )
    return root


def run(root: Path, devices: int, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = preflight.main(["--devices", str(devices)], root)
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.mark.parametrize(
    ("version", "name"),
    [(90402, "gfx942"), (90500, "gfx950"), (90010, "gfx90a"), (90008, "gfx908")],
)
def test_kfd_versions_are_gfx_names(version: int, name: str) -> None:
    assert gfx_name(version) == name


def test_usable_devices_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(node(tmp_path, {128: 90402, 136: 90402}), 2, capsys)
    assert (code, "renderD128 (gfx942), renderD136 (gfx942)" in text) == (0, True)


def test_a_container_without_a_device_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = run(node(tmp_path, {}, kfd=False), 1, capsys)
    assert code == 1
    assert "kfd is missing" in text
    assert "resourceName" in text


@pytest.mark.parametrize("seen", [0, 1, 3])
def test_another_number_of_devices_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seen: int
) -> None:
    code, text = run(node(tmp_path, {128 + i: 90402 for i in range(seen)}), 2, capsys)
    assert code == 1
    assert f"{seen} devices are visible" in text
    assert "2 were asked for" in text


def test_an_architecture_without_kernels_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = run(node(tmp_path, {128: 90402, 129: 90008}), 2, capsys)
    assert code == 1
    assert "renderD129 is gfx908" in text


def test_a_device_of_unknown_architecture_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = node(tmp_path, {128: 90402})
    (root / "dev/dri/renderD150").touch()
    code, text = run(root, 2, capsys)
    assert (code, "renderD150 (unknown)" in text) == (0, True)


def test_a_device_that_may_not_be_opened_names_its_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = node(tmp_path, {128: 90402})
    device = root / "dev/dri/renderD128"
    device.unlink()
    device.mkdir()  # cannot be opened for writing, by root neither
    code, text = run(root, 1, capsys)
    assert code == 1
    assert f"belongs to group {device.stat().st_gid}" in text
    assert "supplementalGroups" in text


def test_the_architectures_are_those_that_the_image_is_built_for() -> None:
    dockerfile = ROOT / "images" / "engine" / "Dockerfile.rocm"
    (built,) = re.findall(r'^ARG GPU_ARCHS="([^"]+)"$', dockerfile.read_text(), re.MULTILINE)
    assert tuple(built.split(";")) == preflight.ARCHITECTURES
