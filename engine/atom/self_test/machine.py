"""Inspect a machine's AMD cards: drivers, memory in use and by which process, links between cards;
and advise what to change.

The module reads files of the kernel's driver and queries amdsmi, so it works for cards that a
runtime cannot open. KFD lists every process of the host, by the host's number of it. Fields: Linux,
drivers/gpu/drm/amd/amdkfd/{kfd_process.c,kfd_topology.c}. `advice` is pure.
"""

from __future__ import annotations

import itertools
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atom.utils.amd_smi import AmdSmiError, CardFacts, read_cards
from atom.utils.kfd_topology import TOPOLOGY, KfdNode, read_nodes, read_properties

LEGACY_IPC = "HSA_ENABLE_IPC_MODE_LEGACY"
_PROCESSES = Path("sys/class/kfd/kfd/proc")
_MUCH_BYTES = 1 << 30
_XGMI, _PCI_EXPRESS = 11, 2  # of a link's `type`: HSA's IOLINKTYPE
_LINK_NAMES = {_XGMI: "XGMI", _PCI_EXPRESS: "PCIe"}
_KERNEL_WORDS = ("iommu", "amd_iommu", "intel_iommu", "pci", "amdgpu")
_FILES = {
    "amdgpu": "sys/module/amdgpu/version",
    "rocm": "opt/rocm/.info/version",
    "numa_balancing": "proc/sys/kernel/numa_balancing",
}


@dataclass(frozen=True, slots=True)
class MemoryHolder:
    """A process with memory of a card. pid: the host's number of it; name: None if no process of
    that number is visible here; address: the card's PCI address."""

    pid: int
    name: str | None
    address: str
    used_bytes: int

    @property
    def whose(self) -> str:
        return self.name or "not of this container, or dead"


@dataclass(frozen=True, slots=True)
class Link:
    """A way by which one card reaches another. kind: XGMI, PCIe, or HSA's number of another."""

    first: str
    second: str
    kind: str


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts of a machine. drivers: name → version, or a relevant setting; addresses: of the
    cards that KFD lists; cards: amdsmi's facts of them, empty if it cannot be queried."""

    drivers: dict[str, str]
    addresses: tuple[str, ...]
    cards: tuple[CardFacts, ...]
    holders: tuple[MemoryHolder, ...]
    links: tuple[Link, ...]

    def lines(self) -> Iterator[str]:
        """Yield the machine's state as readable lines."""
        yield ", ".join(f"{name} {value}" for name, value in self.drivers.items())
        for card in self.cards:
            said = "memory is not told"
            if card.total_bytes is not None and card.used_bytes is not None:
                free = card.total_bytes - card.used_bytes
                said = f"{_gib(free)} of {_gib(card.total_bytes)} free"
            if card.compute_partition is not None:
                said = f"{said}, partition {card.compute_partition}"
            yield f"{card.address} {card.name or ''}: {said}"
        for held in self.holders:
            yield f"{held.address}: {_gib(held.used_bytes)} by process {held.pid} ({held.whose})"
        for link in self.links:
            yield f"{link.first} to {link.second}: {link.kind}"


def look_at_machine(root: Path = Path("/")) -> Machine:
    """Look at the machine whose file system is at `root`."""
    topology = root / TOPOLOGY.relative_to("/")
    nodes = tuple(read_nodes(topology))
    cards = {node.gpu_id: node.address for node in nodes if node.gpu_id is not None}
    try:
        told = tuple(read_cards())
    except AmdSmiError:
        told = ()
    return Machine(
        drivers=_drivers(root),
        addresses=tuple(dict.fromkeys(node.address for node in nodes)),
        cards=told,
        holders=tuple(_holders(root, cards)),
        links=tuple(_links(topology, nodes)),
    )


def _drivers(root: Path) -> dict[str, str]:
    found = {"kernel": platform.release()}
    for name, path in _FILES.items():
        text = _text(root / path)
        if text:
            found[name] = text
    words = (_text(root / "proc/cmdline") or "").split()
    chosen = [word for word in words if word.split("=")[0].split(".")[0] in _KERNEL_WORDS]
    return found | ({"kernel command line": " ".join(chosen)} if chosen else {})


def _holders(root: Path, cards: Mapping[int, str]) -> Iterator[MemoryHolder]:
    for file in sorted((root / _PROCESSES).glob("*/vram_*")):
        number, used = file.name.removeprefix("vram_"), _text(file) or ""
        if number.isdecimal() and used.isdecimal() and int(used) and file.parent.name.isdecimal():
            pid = int(file.parent.name)
            address = cards.get(int(number), f"card {number}")
            yield MemoryHolder(pid, _text(root / f"proc/{pid}/comm"), address, int(used))


def _links(topology: Path, nodes: Sequence[KfdNode]) -> Iterator[Link]:
    """Yield the links between cards, each once; two of them may go by several ways."""
    at = {node.number: node.address for node in nodes}
    found: dict[tuple[int, int], str] = {}
    for folder in ("p2p_links", "io_links"):  # the second are direct, and more specific
        for file in sorted(topology.glob(f"*/{folder}/*/properties")):
            values = read_properties(file)
            ends = sorted((values.get("node_from", -1), values.get("node_to", -1)))
            if all(end in at for end in ends):
                kind = values.get("type", 0)
                found[ends[0], ends[1]] = _LINK_NAMES.get(kind, f"link of type {kind}")
    for (first, second), way in sorted(found.items()):
        yield Link(at[first], at[second], way)


def advice(machine: Machine, variables: Mapping[str, str], rocm: str | None) -> list[str]:
    """Return the recommended changes, one per line. variables: of this process; rocm: the version
    that torch was built for."""
    if not machine.addresses and not machine.cards:
        return []
    return [
        *_of_memory(machine),
        *_of_settings(machine, variables, rocm),
        *_of_links(machine.addresses, machine.links),
    ]


def _of_memory(machine: Machine) -> Iterator[str]:
    for held in machine.holders:
        if held.used_bytes >= _MUCH_BYTES:
            yield (
                f"{_gib(held.used_bytes)} of {held.address} belong to process {held.pid} "
                f"({held.whose}): end it on the node, if it is no engine of yours"
            )
    for card in machine.cards:
        known = sum(item.used_bytes for item in machine.holders if item.address == card.address)
        unknown = (card.used_bytes or 0) - known
        if unknown >= _MUCH_BYTES:
            yield (
                f"{_gib(unknown)} of {card.address} are in use and no process has them: memory "
                "that was shared between processes stays pinned after it is freed since ROCm 7.0 "
                f"(ROCm/rocm-libraries#6266). Start what shares memory with {LEGACY_IPC}=1, as "
                "ROCm/ATOM#2206 does, and end every process that had opened it; what is left "
                "then, `amd-smi reset --gpureset` on an idle card gives back"
            )


def _of_settings(machine: Machine, variables: Mapping[str, str], rocm: str | None) -> Iterator[str]:
    version = rocm or machine.drivers.get("rocm", "0")
    if int(version.split(".")[0]) >= 7 and variables.get(LEGACY_IPC) != "1":
        yield (
            f"set {LEGACY_IPC}=1 (this project's ROCm image has it): since ROCm 7.0 memory that "
            "engines share stays pinned when one of them dies (ROCm/ATOM#2206)"
        )
    if machine.drivers.get("numa_balancing") == "1":
        yield "switch NUMA balancing off on the node (sysctl kernel.numa_balancing=0), as AMD asks"
    words = machine.drivers.get("kernel command line", "").split()
    if len(machine.addresses) > 1 and "iommu=pt" not in words:
        yield "boot the node with iommu=pt: without it AMD names hangs between several cards"


def _of_links(addresses: Sequence[str], links: Sequence[Link]) -> Iterator[str]:
    known = {frozenset((link.first, link.second)) for link in links}
    for first, second in itertools.combinations(addresses, 2):
        if frozenset((first, second)) not in known:
            yield (
                f"the driver shows no link between {first} and {second}: peers exchange by way of "
                "the host; look at `amd-smi topology`, large BAR and ACS in the firmware's settings"
            )


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
