"""What a node's labels say about its AMD devices. Pure; the device plugin's own words.

AMD's node labeller writes two families (amd.com/gpu.* and beta.amd.com/gpu.*), each in a plain form
(kind=value, when all devices agree) and a counted one (kind.value=count). All are read; none is
required. Virtual functions have no product name, so the PCI device id is the key to the product.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from atom_operator.plan.accelerators import (
    PARTITIONS,
    Product,
    partition_of_resource,
    product_of_device_id,
)

_FAMILIES = ("amd.com/gpu.", "beta.amd.com/gpu.")
_GIB = 1024**3
_VRAM = re.compile(r"^(\d+)G$")
_UNHEALTHY = re.compile(r"^metricsexporter\.amd\.com\.gpu\.(.+)\.state$")


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of one logical device.

    `share_bytes` is what a planner may count on; `addressable_bytes` is more than that where NPS1
    lets every partition of a GPU address the memory that all of them share.
    """

    share_bytes: int
    addressable_bytes: int

    @property
    def shared(self) -> bool:
        return self.addressable_bytes > self.share_bytes


def label_values(labels: Mapping[str, str], kind: str) -> tuple[str, ...]:
    """Every value of a labeller's kind such as device-id, plain and counted, sorted."""
    found: set[str] = set()
    for family in _FAMILIES:
        plain = labels.get(family + kind)
        if plain:
            found.add(plain)
        counted = family + kind + "."
        found.update(key.removeprefix(counted) for key in labels if key.startswith(counted))
    return tuple(sorted(found))


def products_of(labels: Mapping[str, str]) -> tuple[Product, ...]:
    """The known products on the node, each once."""
    found = (product_of_device_id(value) for value in label_values(labels, "device-id"))
    return tuple(dict.fromkeys(product for product in found if product is not None))


def device_memory(labels: Mapping[str, str], resource: str) -> DeviceMemory | None:
    """Memory of one device of `resource` on this node; None when unknown or when devices differ.

    A partition's label gives its share of the GPU, also under NPS1, where the share is no limit.
    """
    products, vram = products_of(labels), label_values(labels, "vram")
    modes = label_values(labels, "compute-memory-partition")
    partition = partition_of_resource(resource) or (modes[0] if len(modes) == 1 else None)
    parts = PARTITIONS.get(partition.partition("_")[0], 1) if partition else 1
    whole = _whole_bytes(products)
    if whole is not None:
        share = whole // parts
    elif len(vram) == 1 and (match := _VRAM.match(vram[0])):
        share = int(match.group(1)) * _GIB
    else:
        return None
    shares_memory = parts > 1 and partition is not None and partition.endswith("nps1")
    return DeviceMemory(share, share * parts if shares_memory else share)


def unhealthy_devices(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Ids of the devices that AMD's metrics exporter calls unhealthy."""
    matches = ((_UNHEALTHY.match(key), value) for key, value in labels.items())
    return tuple(
        sorted(match.group(1) for match, value in matches if match and value == "unhealthy")
    )


def _whole_bytes(products: tuple[Product, ...]) -> int | None:
    """Memory of a whole GPU when every device of the node has the same."""
    sizes = {product.memory_gib for product in products}
    size = sizes.pop() if len(sizes) == 1 else None
    return size * _GIB if size is not None else None
