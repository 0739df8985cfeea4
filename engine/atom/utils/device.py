"""Which device this process runs on, and how much memory and how many cores it may use.

Detected once at start, overridable by `--device`. Containers are respected: the limits of the
control group count, not the machine's size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from atom.errors import ConfigError
from atom.utils import amd_memory
from atom.utils.host_memory import host_memory_bytes
from atom.utils.packed_arrays import Packing

DEVICE_TYPES = ("auto", "cpu", "cuda", "rocm", "gpu")
_CGROUP_V2_CPU = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1_CPU = Path("/sys/fs/cgroup/cpu")


@dataclass(frozen=True, slots=True)
class Device:
    """The device that an engine computes on. type: cpu, cuda or rocm; name: for people;
    torch_device: where tensors live. sharers: how many engine processes share the machine's cores
    and memory, if this is the CPU."""

    type: str
    name: str
    torch_device: torch.device
    sharers: int = 1

    @property
    def is_gpu(self) -> bool:
        return self.type != "cpu"

    def total_memory_bytes(self) -> int:
        if self.is_gpu:
            return int(torch.cuda.mem_get_info(self.torch_device)[1])
        return host_memory_bytes() // self.sharers

    def host_memory_bytes(self) -> int:
        """Return the memory of the host that the processes of this container may use."""
        return host_memory_bytes()

    def used_memory_bytes(self) -> int:
        """Measure the memory of a GPU that all processes use: the larger of the runtime's figure
        and, on AMD, the management tool's."""
        free, total = torch.cuda.mem_get_info(self.torch_device)
        told = amd_memory.used_bytes(self._pci_address()) if self.type == "rocm" else None
        return max(total - free, told or 0)

    def process_bytes(self) -> int:
        """Measure the bytes that this process holds: a GPU's memory reserved for tensors, or on the
        CPU its resident memory."""
        if self.is_gpu:
            return int(torch.cuda.memory_reserved(self.torch_device))
        return int(psutil.Process().memory_info().rss)

    def _pci_address(self) -> str:
        found: Any = torch.cuda.get_device_properties(self.torch_device)
        place = (found.pci_domain_id, found.pci_bus_id, found.pci_device_id)
        return "{:04x}:{:02x}:{:02x}.0".format(*place)

    def threads(self) -> int:
        """Return the cores that one process of a CPU engine keeps busy."""
        return _share_of_cpus(self.sharers)


def detect_device(wanted: str, *, sharers: int = 1, index: int = 0) -> Device:
    """Select the device of that index among those that this process sees, and make it torch's
    current device. Raises `ConfigError` when `wanted` is unknown or not present."""
    if wanted not in DEVICE_TYPES:
        raise ConfigError(f"unknown device {wanted!r}; devices: {', '.join(DEVICE_TYPES)}")
    gpu_type = None
    if torch.cuda.is_available():
        gpu_type = "rocm" if torch.version.hip else "cuda"
    chosen = wanted
    if wanted in ("auto", "gpu"):
        chosen = gpu_type or ("cpu" if wanted == "auto" else wanted)
    if chosen == "cpu":
        return Device(
            "cpu", f"cpu ({_share_of_cpus(sharers)} threads)", torch.device("cpu"), sharers
        )
    if chosen != gpu_type:
        raise ConfigError(
            f"device {chosen}: this machine's torch {torch.__version__} sees "
            f"{gpu_type or 'no GPU'}; check the driver, or use --device {gpu_type or 'cpu'}"
        )
    if index >= torch.cuda.device_count():
        raise ConfigError(
            f"a copy of the model is to have {index + 1} devices or more, and this process sees "
            f"{torch.cuda.device_count()}; use a smaller --tensor-parallel-size, or show it more"
        )
    torch.cuda.set_device(index)
    return Device(chosen, torch.cuda.get_device_name(index), torch.device("cuda", index))


def amd_architecture() -> str | None:
    """Return the gfx name of the AMD GPU that torch sees, such as gfx942; None if it sees none."""
    if torch.version.hip is None or not torch.cuda.is_available():
        return None
    name: str = torch.cuda.get_device_properties(0).gcnArchName
    return name.partition(":")[0]


def check_dtype(device: Device, dtype: torch.dtype) -> None:
    """Raise `ConfigError` for a dtype of weights that the device does not compute."""
    if not device.is_gpu or dtype is not torch.bfloat16:
        return
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ConfigError(
            f"dtype bfloat16: {device.name} has no arithmetic for it; use --dtype float16 or "
            "float32"
        )


@cache
def native_fp8(device: torch.device) -> torch.dtype | None:
    """Return the e4m3 type that a device multiplies; None if it has none. MI300 (gfx94x) has only
    fnuz; on the CPU e4m3fn is converted."""
    if device.type == "cpu":
        return torch.float8_e4m3fn
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        architecture = properties.gcnArchName
        if architecture.startswith("gfx94"):
            return torch.float8_e4m3fnuz
        return torch.float8_e4m3fn if architecture.startswith(("gfx95", "gfx12")) else None
    return torch.float8_e4m3fn if (properties.major, properties.minor) >= (8, 9) else None


def upload(array: NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """Copy the array to the device, without waiting for it: a copy from pageable memory would make
    the host wait for everything submitted before. On the CPU the tensor may share the array's
    memory."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cpu":
        return tensor
    # torch keeps pinned blocks for reuse, and this one until the copy has happened.
    return tensor.pin_memory().to(device, non_blocking=True)


def upload_together(
    arrays: Mapping[str, NDArray[np.generic]], device: torch.device
) -> dict[str, torch.Tensor]:
    """Upload several arrays by one copy, which the device idles for before a first step. The
    tensors share one allocation."""
    if device.type == "cpu":
        return {name: upload(array, device) for name, array in arrays.items()}
    packing = Packing(arrays)
    packed = torch.empty(packing.size, dtype=torch.uint8, pin_memory=True)
    for name, place in packing.arrays(packed.numpy()).items():
        np.copyto(place, arrays[name])
    return packing.tensors(packed.to(device, non_blocking=True))


def usable_cpus() -> int:
    """Return the cores that this process may keep busy: its affinity, bounded by the control
    group's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _cgroup_cpu_quota()
    return max(1, min(cores or 1, int(quota) if quota else cores or 1))


def _share_of_cpus(sharers: int) -> int:
    """Return the cores that one of `sharers` processes may use; fewer if OMP_NUM_THREADS limits
    them."""
    share = max(1, usable_cpus() // sharers)
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(share, int(wanted)) if wanted.isdecimal() and int(wanted) else share


def _cgroup_cpu_quota() -> float | None:
    try:
        if _CGROUP_V2_CPU.exists():
            quota, period = _CGROUP_V2_CPU.read_text().split()
            return None if quota == "max" else float(quota) / float(period)
        microseconds = int((_CGROUP_V1_CPU / "cpu.cfs_quota_us").read_text())
        period_us = int((_CGROUP_V1_CPU / "cpu.cfs_period_us").read_text())
        return None if microseconds <= 0 else microseconds / period_us
    except (OSError, ValueError):
        return None


def peak_bytes(run: Callable[[], None]) -> int:
    """Return the peak of the GPU's memory during a call, above the bytes before it."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    torch.cuda.empty_cache()
    return peak
