"""rank_device: which of the machine's devices a rank computes on."""

from __future__ import annotations

from atom.config import Config
from atom.utils.device import Device, detect_device


def rank_device(config: Config) -> Device:
    """Return the device of this rank, and on the CPU its share of the machine."""
    parallel = config.parallel
    here, device = parallel.ranks_per_node, config.execution.device
    if parallel.shares_experts:
        return detect_device(device, sharers=here, index=parallel.data_parallel_rank % here)
    return detect_device(
        device,
        sharers=parallel.data_parallel_size * here,
        index=parallel.tensor_parallel_rank % here,
    )
