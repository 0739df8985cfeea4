"""What is in use of an AMD card's memory, as its management tool says.

HIP's own figure leaves other processes out on some versions of ROCm. Called by device.py; the text
is `rocm-smi --showmeminfo vram --showbus --json`'s, by PCI address.
"""

from __future__ import annotations

import json
import logging
import subprocess

logger = logging.getLogger(__name__)

_COMMAND = ("rocm-smi", "--showmeminfo", "vram", "--showbus", "--json")
_SECONDS = 20
_BUS, _USED = "PCI Bus", "VRAM Total Used Memory (B)"


def used_bytes(address: str) -> int | None:
    """Of all processes, on the card of this PCI address, such as 0000:c4:00.0; None where the tool
    is missing, or says nothing of it."""
    try:
        told = subprocess.run(
            _COMMAND, capture_output=True, text=True, timeout=_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        logger.info("memory of other processes is HIP's figure: rocm-smi: %s", error)
        return None
    return parse_used_bytes(told).get(address.lower())


def parse_used_bytes(told: str) -> dict[str, int]:
    """PCI address, in small letters → bytes. Warnings before the JSON are skipped, as is what is no
    card, or has no figure (N/A)."""
    try:
        cards = json.loads(told[told.index("{") :])
    except ValueError:
        return {}
    return {
        str(card[_BUS]).lower(): int(card[_USED])
        for card in cards.values()
        if isinstance(card, dict) and _BUS in card and str(card.get(_USED)).isdecimal()
    }
