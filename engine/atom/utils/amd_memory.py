"""Read the used memory of an AMD card from its management library or tool.

On some versions of ROCm HIP's own figure omits other processes. Called by device.py. The source is
amdsmi (amd_smi.py); if it is missing or gives no figure, `rocm-smi --showmeminfo vram --showbus
--json`, by PCI address.
"""

from __future__ import annotations

import json
import logging
import subprocess

from atom.utils import amd_smi

logger = logging.getLogger(__name__)

_COMMAND = ("rocm-smi", "--showmeminfo", "vram", "--showbus", "--json")
_SECONDS = 20
_BUS, _USED = "PCI Bus", "VRAM Total Used Memory (B)"


def used_bytes(address: str) -> int | None:
    """Measure the bytes that all processes use on the card of this PCI address, such as
    0000:c4:00.0; None if neither source has a figure."""
    address = address.lower()
    told = _told_by_library(address)
    return told if told is not None else _told_by_tool(address)


def _told_by_library(address: str) -> int | None:
    try:
        cards = amd_smi.read_cards()
    except amd_smi.AmdSmiError as error:
        logger.info("memory of other processes is asked of rocm-smi: %s", error)
        return None
    return next((card.used_bytes for card in cards if card.address == address), None)


def _told_by_tool(address: str) -> int | None:
    try:
        told = subprocess.run(
            _COMMAND, capture_output=True, text=True, timeout=_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        logger.info("memory of other processes is HIP's figure: rocm-smi: %s", error)
        return None
    return parse_used_bytes(told).get(address)


def parse_used_bytes(told: str) -> dict[str, int]:
    """Parse used bytes by PCI address in lower case. Warnings before the JSON are skipped, as are
    entries that are not cards, or have no figure (N/A)."""
    try:
        cards = json.loads(told[told.index("{") :])
    except ValueError:
        return {}
    return {
        str(card[_BUS]).lower(): int(card[_USED])
        for card in cards.values()
        if isinstance(card, dict) and _BUS in card and str(card.get(_USED)).isdecimal()
    }
