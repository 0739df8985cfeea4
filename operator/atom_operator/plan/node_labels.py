"""AMD devices as a node's labels describe them. Pure; the device plugin's own words.

AMD's node labeller writes two families (amd.com/gpu.* and beta.amd.com/gpu.*), each in a plain form
(kind=value, when all devices agree) and a counted one (kind.value=count). All are read; none is
required. Virtual functions have no product name, so the PCI device id is the key to the product.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from atom_operator.plan.accelerators import (
    Product,
    partition_count,
    partition_of_resource,
    product_of_device_id,
    product_of_name,
)

_FAMILIES = ("amd.com/gpu.", "beta.amd.com/gpu.")
_GIB = 1024**3
_VRAM = re.compile(r"^(\d+)G$")
_UNHEALTHY = re.compile(r"^metricsexporter\.amd\.com\.gpu\.(.+)\.state$")


def share_on(labels: Mapping[str, str], resource: str, device_ids: tuple[str, ...]) -> int | None:
    """Return the memory of one device of `resource`, as memory_share_bytes does; None also on nodes
    without any of `device_ids`, if any are given."""
    if device_ids and not set(device_ids) & set(label_values(labels, "device-id")):
        return None
    return memory_share_bytes(labels, resource)


def label_values(labels: Mapping[str, str], kind: str) -> tuple[str, ...]:
    """List every value of a labeller's kind such as device-id, plain and counted, sorted."""
    found: set[str] = set()
    for family in _FAMILIES:
        plain = labels.get(family + kind)
        if plain:
            found.add(plain)
        counted = family + kind + "."
        found.update(key.removeprefix(counted) for key in labels if key.startswith(counted))
    return tuple(sorted(found))


def products_of(labels: Mapping[str, str]) -> tuple[Product, ...]:
    """Return the known products on the node, each once: by device id, or by name if no label has an
    id."""
    ids = label_values(labels, "device-id")
    found = [product_of_device_id(value) for value in ids]
    if not ids:
        found = [product_of_name(value) for value in label_values(labels, "product-name")]
    return tuple(dict.fromkeys(product for product in found if product is not None))


def partition_mode(labels: Mapping[str, str], resource: str) -> str | None:
    """Return the mode such as cpx_nps4: by the resource's name, or by the label of a node of one
    mode."""
    modes = label_values(labels, "compute-memory-partition")
    return partition_of_resource(resource) or (modes[0] if len(modes) == 1 else None)


def memory_share_bytes(labels: Mapping[str, str], resource: str) -> int | None:
    """Return the memory of one device of `resource` on this node; None if unknown or if devices
    differ.

    For a partition, its share of the GPU, also under NPS1, where it may address the memory that all
    partitions share: counting that for each of them would count it several times.
    """
    products, vram = products_of(labels), label_values(labels, "vram")
    partition = partition_mode(labels, resource)
    whole = _whole_bytes(products)
    if whole is not None:
        return whole // partition_count(partition)
    if len(vram) == 1 and (match := _VRAM.match(vram[0])):
        return int(match.group(1)) * _GIB
    return None


def unhealthy_devices(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the ids of the devices that AMD's metrics exporter calls unhealthy."""
    matches = ((_UNHEALTHY.match(key), value) for key, value in labels.items())
    return tuple(
        sorted(match.group(1) for match, value in matches if match and value == "unhealthy")
    )


def _whole_bytes(products: tuple[Product, ...]) -> int | None:
    """Return the memory of a whole GPU when every device of the node has the same."""
    sizes = {product.memory_gib for product in products}
    size = sizes.pop() if len(sizes) == 1 else None
    return size * _GIB if size is not None else None


def node_autoscaler(nodes: Iterable[Mapping[str, Any]]) -> str | None:
    """Name the node autoscaler of the cluster, by its marks on nodes that it created; None if no
    node has one. An autoscaler that has added no node yet leaves none."""
    for node in nodes:
        metadata = node["metadata"]
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        if "karpenter.sh/nodepool" in labels:
            return "Karpenter (label karpenter.sh/nodepool)"
        if any(str(key).startswith("cluster-autoscaler.kubernetes.io/") for key in annotations):
            return "cluster-autoscaler (annotations cluster-autoscaler.kubernetes.io/…)"
    return None
