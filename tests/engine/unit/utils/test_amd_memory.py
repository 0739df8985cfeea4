"""What rocm-smi says of memory, from outputs that it gave."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from atom.utils import amd_memory
from atom.utils.device import Device

# Put together of what users posted of releases 6: names and figures are theirs.
RECORDED = """WARNING: AMD GPU device(s) is/are in a low-power state.

{
  "card0": {
    "GUID": "45534",
    "PCI Bus": "0000:03:00.0",
    "VRAM Total Memory (B)": "17163091968",
    "VRAM Total Used Memory (B)": "692142080"
  },
  "card1": {
    "GUID": "52156",
    "PCI Bus": "0000:C4:00.0",
    "VRAM Total Memory (B)": "67108864",
    "VRAM Total Used Memory (B)": "26079232"
  },
  "card2": {"PCI Bus": "0000:C5:00.0", "VRAM Total Used Memory (B)": "N/A"},
  "system": {"Driver version": "6.8.5"}
}
"""


def test_a_recorded_output_is_read_by_address() -> None:
    assert amd_memory.parse_used_bytes(RECORDED) == {
        "0000:03:00.0": 692142080,
        "0000:c4:00.0": 26079232,
    }


@pytest.mark.parametrize("told", ["", "ERROR: no device", "{", "{}"])
def test_what_is_no_output_says_nothing(told: str) -> None:
    assert amd_memory.parse_used_bytes(told) == {}


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "rocm-smi"


def _card(monkeypatch: pytest.MonkeyPatch, bus: int) -> Device:
    place = SimpleNamespace(pci_domain_id=0, pci_bus_id=bus, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: place)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10**9 - 10**6, 10**9))
    return Device("rocm", "AMD Instinct MI300X", torch.device("cuda", 0))


def test_other_processes_are_counted_where_the_runtime_leaves_them_out(
    tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "told").write_text(RECORDED)
    tool.write_text(f'#!/bin/sh\n[ "$1" = --showmeminfo ] && exec cat "{tmp_path}/told"\n')
    tool.chmod(0o755)
    assert _card(monkeypatch, 0xC4).used_memory_bytes() == 26079232
    assert _card(monkeypatch, 0x77).used_memory_bytes() == 10**6


def test_without_the_tool_the_runtimes_figure_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level("INFO"):
        assert _card(monkeypatch, 0xC4).used_memory_bytes() == 10**6
    assert "rocm-smi" in caplog.text
