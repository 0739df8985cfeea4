"""`atom preflight`: check that this machine can serve models, or a container its AMD devices.

`--devices N` reads the kernel's files (/dev/kfd, /dev/dri, the KFD topology in sysfs) and loads no
ROCm library. So it answers in milliseconds, and its one line is more specific than a runtime's
error. An init container runs it; the line becomes the pod's termination message. Knows nothing of
models.

`--check`, the default, and `--report` are for people, and load everything. `--check` prints a
verdict, the machine's facts and the backends of each kind of model. `--report` writes one file to
attach to an issue: the machine, every operation on the card, compared and timed, and a small model
compared with the CPU (self_test/).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from atom.missing_packages import missing_package
from atom.utils.kfd_topology import TOPOLOGY, read_nodes

# gfx names that this engine's ROCm image is built for (images/engine/Dockerfile.rocm; a test
# compares). Kernels are compiled for gfx942 in tests; none was started on an AMD device yet.
ARCHITECTURES = ("gfx942", "gfx950")
_RENDER_NODE = re.compile(r"^renderD(\d+)$")


class PreflightError(Exception):
    """The devices cannot be used; the message names the device, the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Device:
    """A logical device; `architecture` is None if the topology does not state it."""

    path: Path
    architecture: str | None


def check(devices: int, architectures: Sequence[str], root: Path = Path("/")) -> list[Device]:
    """Return the devices under `root`/dev, all of them usable; raises PreflightError."""
    kfd = root / "dev/kfd"
    if not kfd.exists():
        raise PreflightError(
            f"{kfd} is missing: the container has no AMD device; request one from the device "
            "plugin (spec.accelerator.resourceName) and see that the node has the amdgpu driver"
        )
    found = list(_devices(root))
    for path in (kfd, *(device.path for device in found)):
        _require_access(path)
    if len(found) != devices:
        names = ", ".join(device.path.name for device in found) or "none"
        raise PreflightError(
            f"{len(found)} devices are visible ({names}) and {devices} were asked for: another "
            "partition mode than the device plugin's, or a device that the driver has lost; look "
            "at amd-smi on the node and restart its device plugin"
        )
    for device in found:
        if device.architecture is not None and device.architecture not in architectures:
            raise PreflightError(
                f"{device.path.name} is {device.architecture}, and this engine has kernels for "
                f"{', '.join(architectures)}: use an engine image for it, or spec.accelerator."
                "product to choose other nodes"
            )
    return found


def _devices(root: Path) -> Iterator[Device]:
    folder = root / "dev/dri"
    nodes = read_nodes(root / TOPOLOGY.relative_to("/"))
    known = {node.render_minor: node.architecture for node in nodes}
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in entries:
        match = _RENDER_NODE.match(path.name)
        if match:
            yield Device(path, known.get(int(match.group(1))))


def _require_access(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        group = path.stat().st_gid if path.exists() else "unknown"
        raise PreflightError(
            f"{path} cannot be opened by user {os.getuid()} with groups {sorted(os.getgroups())}: "
            f"{error.strerror}; it belongs to group {group}: set "
            f"spec.template.spec.securityContext.supplementalGroups to [{group}]"
        ) from error


def main(arguments: Sequence[str] | None = None, root: Path = Path("/")) -> int:
    parser = argparse.ArgumentParser(prog="python -m atom.preflight", description=__doc__)
    add_preflight_arguments(parser)
    options = parser.parse_args(arguments)
    try:
        return run_preflight(options, root)
    except ModuleNotFoundError as error:
        lacking = missing_package(error, "atom.preflight")
        if lacking is None:
            raise
        print(f"preflight: {lacking}", file=sys.stderr)
        return 1


def add_preflight_arguments(parser: argparse.ArgumentParser) -> None:
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--devices", type=int, help="how many there have to be")
    asked.add_argument(
        "--check",
        action="store_true",
        help="say whether models can be served here, and on which backends (the default)",
    )
    asked.add_argument(
        "--report",
        action="store_true",
        help="look at the machine, try every operation and a small model, and write a file",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("atom-report.tar.gz"),
        help="the file that --report writes",
    )
    parser.add_argument(
        "--architectures",
        default=",".join(ARCHITECTURES),
        help="gfx names that the engine has kernels for",
    )


def run_preflight(options: argparse.Namespace, root: Path = Path("/")) -> int:
    """Return 0 after a line about the devices, or 1 after a line about the fault. With --check or
    without a flag, return 0 if every kind of model is computed here; with --report, if everything
    passed."""
    if options.report:
        return _try_everything(options.output)
    if options.devices is None:
        return _say_what_is_used()
    try:
        found = check(options.devices, tuple(options.architectures.split(",")), root)
    except PreflightError as error:
        print(f"preflight: {error}", file=sys.stderr)
        return 1
    names = ", ".join(f"{item.path.name} ({item.architecture or 'unknown'})" for item in found)
    print(f"preflight: {len(found)} devices can be used: {names}")
    return 0


def _say_what_is_used() -> int:
    from atom.self_test.check_table import print_check
    from atom.self_test.report import make_report
    from atom.utils.device import detect_device

    device = detect_device("auto")
    report = make_report(device.type, device.torch_device, tries=False)
    print_check(report)
    return 1 if report.unserved else 0


def _try_everything(output: Path) -> int:
    # Imported here: an init container has a second, and no use for torch.
    from atom.self_test.report import make_report, summary, write_bundle
    from atom.utils.device import detect_device

    device = detect_device("auto")
    report = make_report(device.type, device.torch_device)
    write_bundle(report, output)
    print(summary(report))
    print(f"preflight: written to {output}; attach it to an issue")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
