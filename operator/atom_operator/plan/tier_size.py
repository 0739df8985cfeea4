"""The size of the KV cache's tier in the host's memory, if the spec leaves it to the operator.

Of a GPU's pods: 70 % of the memory that the pod's share of the devices brings on the smallest node
with the device, less the pod's own request. On the CPU: a quarter of accelerator.memory, which the
tier is a part of. The size is a multiple of 16 GiB on GPUs, so that nodes which differ a little
give the same pods. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from atom_operator.api.v1alpha1.common import quantity_bytes
from atom_operator.constants import GPU_HOST_GIB
from atom_operator.domain import Accelerator, EngineOptions, Manifest
from atom_operator.domain.resources import MEMORY
from atom_operator.plan.inventory import allocatable_of
from atom_operator.sizes import size_text

_GIB = 1024**3
_STEP_BYTES = 16 * _GIB
_PERCENT = 70
_CPU_PARTS = 4


def sized_tier(
    options: EngineOptions, nodes: Iterable[Manifest], accelerator: Accelerator
) -> EngineOptions:
    """Return the options with the size of the tier, and why, if it is left to the operator."""
    serving = options.serving
    if serving.pages.host_rule is None:
        return options
    memory = accelerator.memory_bytes
    if accelerator.type == "cpu":
        size_bytes = (memory or 0) // _CPU_PARTS
        rule = f"a quarter of accelerator.memory, {size_text(memory or 0)}"
    else:
        size_bytes, rule = _of_nodes(options, nodes, accelerator.resource_name)
    pages = replace(serving.pages, host_rule=rule)
    serving = replace(serving, host_tier_bytes=size_bytes, pages=pages)
    return replace(options, serving=serving)


def _of_nodes(
    options: EngineOptions, nodes: Iterable[Manifest], resource: str | None
) -> tuple[int, str]:
    shares = [] if resource is None else list(_shares(nodes, resource, options.devices_per_pod))
    if not shares:
        return 0, "no node with the device is known; give hostMemory a size"
    share = min(shares)
    own_bytes = GPU_HOST_GIB * options.copies_per_pod * _GIB
    size_bytes = max(0, share * _PERCENT // 100 - own_bytes) // _STEP_BYTES * _STEP_BYTES
    rule = (
        f"{_PERCENT} % of the {size_text(share)} that {options.devices_per_pod} of the devices of "
        f"the smallest node bring, less {size_text(own_bytes)} of the pod's own"
    )
    return size_bytes, rule if size_bytes else f"{rule}: too little for a tier"


def _shares(nodes: Iterable[Manifest], resource: str, devices: int) -> Iterable[int]:
    """Yield of each node with the devices of a pod the memory that these bring."""
    for node in nodes:
        count = allocatable_of(node, resource)
        memory = ((node.get("status") or {}).get("allocatable") or {}).get(MEMORY)
        if count >= devices and isinstance(memory, str | int):
            try:
                yield quantity_bytes(str(memory)) * devices // count
            except ValueError:  # a quantity that this operator does not read
                continue
