"""Read the kernel driver's facts of AMD devices: /sys/class/kfd/kfd/topology/nodes.

There is a folder per device, and in a partition mode one per partition. CPUs, which have no gfx
name, are skipped. The module only reads files, so it works without a ROCm library. Called by
preflight, and by kernels that need a device's dies. Fields: Linux,
drivers/gpu/drm/amd/amdkfd/kfd_topology.c.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
# Of `location_id`: bus, device and function. A partition's number is in the bits above.
_LOCATION_BITS = 16
_FUNCTION_BITS = 3


@dataclass(frozen=True, slots=True)
class KfdNode:
    """A GPU in the KFD's topology. architecture: its gfx name; render_minor: N of
    /dev/dri/renderDN, None if it has none; place: PCI domain, bus and device; dies: XCDs that it
    computes with, 0 if unknown; number: of its folder, by which links name it; gpu_id: KFD's own
    name of it, which the memory of processes refers to, None if it may not be read."""

    architecture: str
    render_minor: int | None
    place: tuple[int, int, int]
    dies: int
    number: int
    gpu_id: int | None

    @property
    def address(self) -> str:
        """Return the device's PCI address, such as 0000:c4:00.0; partitions of one card share an
        address."""
        return "{:04x}:{:02x}:{:02x}.0".format(*self.place)


def read_nodes(topology: Path = TOPOLOGY) -> Iterator[KfdNode]:
    """Yield every device of the node: sysfs is the host's."""
    for file in sorted(topology.glob("*/properties")):
        values = read_properties(file)
        version = values.get("gfx_target_version", 0)
        if version:
            location = values.get("location_id", 0) & ((1 << _LOCATION_BITS) - 1)
            bus, device = location >> 8, (location & 0xFF) >> _FUNCTION_BITS
            yield KfdNode(
                architecture=gfx_name(version),
                render_minor=values.get("drm_render_minor") or None,
                place=(values.get("domain", 0), bus, device),
                dies=values.get("num_xcc", 0),
                number=int(file.parent.name),
                gpu_id=_gpu_id(file.parent),
            )


def read_properties(file: Path) -> dict[str, int]:
    """Read the named numbers of a file of the topology; none if the file may not be read, such as
    for a device of another container."""
    try:
        text = file.read_text(encoding="ascii", errors="replace")
        pairs = (line.split() for line in text.splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
    except OSError:
        return {}


def _gpu_id(node: Path) -> int | None:
    try:
        return int((node / "gpu_id").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def dies_at(place: tuple[int, int, int], topology: Path = TOPOLOGY) -> int | None:
    """Return the XCDs of the device at this PCI domain, bus and device; None if the driver gives no
    number, or different numbers for its partitions."""
    told = {node.dies for node in read_nodes(topology) if node.place == place}
    return next(iter(told)) or None if len(told) == 1 else None


def gfx_name(target_version: int) -> str:
    """Return the gfx name of KFD's decimal version: 90402 is gfx942, 90010 is gfx90a."""
    major, minor, stepping = (
        target_version // 10_000,
        target_version // 100 % 100,
        target_version % 100,
    )
    return f"gfx{major}{minor:x}{stepping:x}"
