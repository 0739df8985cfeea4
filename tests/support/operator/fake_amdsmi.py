"""The package amdsmi with the answers of two MI300X, as its reference says it gives them.

The first is partitioned (DPX, NPS1); of the second a guest's driver tells little.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import ModuleType
from typing import Any


class AmdSmiLibraryException(Exception):  # noqa: N818 - its name
    """Raised for what a driver does not support."""


class AmdSmiMemoryType(enum.IntEnum):
    """Kinds of memory."""

    VRAM = 0
    VIS_VRAM = 1
    GTT = 2


ANSWERS: dict[str, dict[str, Any]] = {
    "0000:c4:00.0": {
        "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI300X", "device_id": "0x74a1"},
        "amdsmi_get_gpu_driver_info": {
            "driver_name": "amdgpu", "driver_version": "6.12.12", "driver_date": "2015/01/01 00:00",
        },
        "amdsmi_get_gpu_compute_partition": "DPX",
        "amdsmi_get_gpu_memory_partition": "NPS1",
        "amdsmi_get_gpu_memory_total": 206141652992,
        "amdsmi_get_gpu_memory_usage": 297746432,
    },
    "0000:C5:00.0": {"amdsmi_get_gpu_memory_usage": 26079232},
}  # fmt: skip


def fake_amdsmi() -> ModuleType:
    """Calls before `amdsmi_init`, and after `amdsmi_shut_down`, are errors."""
    module: Any = ModuleType("amdsmi")
    started = False

    def start(running: bool) -> None:
        nonlocal started
        started = running

    def asked(name: str) -> Callable[..., Any]:
        def answer(card: str, *kind: AmdSmiMemoryType) -> Any:
            if not started:
                raise AmdSmiLibraryException("AMDSMI_STATUS_NOT_INIT")
            if name not in ANSWERS[card]:
                raise AmdSmiLibraryException("AMDSMI_STATUS_NOT_SUPPORTED")
            assert kind in ((), (AmdSmiMemoryType.VRAM,))
            return ANSWERS[card][name]

        return answer

    module.AmdSmiMemoryType = AmdSmiMemoryType
    module.amdsmi_init = lambda: start(True)
    module.amdsmi_shut_down = lambda: start(False)
    module.amdsmi_get_processor_handles = lambda: list(ANSWERS) if started else []
    module.amdsmi_get_gpu_device_bdf = lambda card: card
    for name in ANSWERS["0000:c4:00.0"]:
        setattr(module, name, asked(name))
    return module
