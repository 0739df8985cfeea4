"""AMD's management library `amdsmi`: read the facts of a machine's cards.

The Python package comes with ROCm, not from an index, so only this module imports it, and only on
demand. AMD's reference of its Python API documents every function used here:
https://rocm.docs.amd.com/projects/amdsmi/en/latest/reference/amdsmi-py-api.html. A fact that a card
or a driver does not report raises there, and is None here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

Fact = TypeVar("Fact")


class AmdSmiError(Exception):
    """The library is missing or cannot be used; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class CardFacts:
    """Facts of a card from AMD SMI. address: of PCI, such as 0000:c4:00.0 in lower case; partitions
    such as SPX and NPS1."""

    address: str
    name: str | None
    driver: str | None
    compute_partition: str | None
    memory_partition: str | None
    total_bytes: int | None
    used_bytes: int | None


def read_cards() -> list[CardFacts]:
    """Read the facts of every card that the driver shows to this process. Raises `AmdSmiError`.

    Between `amdsmi_init()` and `amdsmi_shut_down()`; `amdsmi_get_processor_handles()` lists cards.
    """
    try:
        library: Any = import_module("amdsmi")
        library.amdsmi_init()
        try:
            return [_facts(library, card) for card in library.amdsmi_get_processor_handles()]
        finally:
            library.amdsmi_shut_down()
    except Exception as error:  # its import loads a shared library, which may fail in any way
        raise AmdSmiError(f"amdsmi: {type(error).__name__}: {error}") from error


def _facts(library: Any, card: Any) -> CardFacts:
    """Read a card's facts: `amdsmi_get_gpu_device_bdf` gives domain:bus:device.function; memory is
    in bytes, of `AmdSmiMemoryType.VRAM`; `…_asic_info` and `…_driver_info` are dictionaries."""
    kind = library.AmdSmiMemoryType.VRAM
    return CardFacts(
        address=str(library.amdsmi_get_gpu_device_bdf(card)).lower(),
        name=_told(lambda: str(library.amdsmi_get_gpu_asic_info(card)["market_name"])),
        driver=_told(lambda: str(library.amdsmi_get_gpu_driver_info(card)["driver_version"])),
        compute_partition=_told(lambda: str(library.amdsmi_get_gpu_compute_partition(card))),
        memory_partition=_told(lambda: str(library.amdsmi_get_gpu_memory_partition(card))),
        total_bytes=_told(lambda: int(library.amdsmi_get_gpu_memory_total(card, kind))),
        used_bytes=_told(lambda: int(library.amdsmi_get_gpu_memory_usage(card, kind))),
    )


def _told(ask: Callable[[], Fact]) -> Fact | None:
    try:
        return ask()
    except Exception:  # AmdSmiLibraryException if unsupported; AttributeError of old versions
        return None
