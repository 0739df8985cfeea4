"""The catalogue of AMD devices, and the Accelerator that a spec requests.

Memory is per logical device in SPX mode (an MI250 module shows as two devices); a partition has its
share. Data and pure lookups; the caller passes the nodes' facts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from atom.sizing.cards import CARDS, PARTITIONS, Precision
from atom_operator.api.v1alpha1.accelerator import AcceleratorSpec
from atom_operator.api.v1alpha1.common import quantity_bytes
from atom_operator.domain import Accelerator
from atom_operator.domain.devices import DeviceClaim

DEFAULT_RESOURCE_NAME = "amd.com/gpu"
DEFAULT_CPU_MEMORY = "4Gi"
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Product:
    """Describe one GPU product. `device_ids` are PCI ids, virtual functions included. Its facts are
    those of the engine's table of cards, if that has it."""

    name: str
    device_ids: tuple[str, ...]

    @property
    def memory_gib(self) -> int | None:
        card = CARDS.get(self.name)
        return None if card is None else card.memory_bytes // _GIB

    @property
    def multiplies_fp4(self) -> bool:
        """Return whether the product has instructions for products of FP4 (gfx950)."""
        card = CARDS.get(self.name)
        return card is not None and Precision.FP4 in card.flops


# AMD's device ids. MI308X is in no table of cards, because sources disagree about its memory.
PRODUCTS = (
    Product("MI100", ("738c", "738e")),
    Product("MI210", ("740f", "7410")),
    Product("MI250", ("740c",)),
    Product("MI250X", ("7408", "740c")),
    Product("MI300A", ("74a0",)),
    Product("MI300X", ("74a1", "74a9", "74bd", "74b5")),
    Product("MI308X", ("74a2", "74a8", "74b6")),
    Product("MI325X", ("74a5", "74b9")),
    Product("MI350X", ("75a0", "75b0")),
    Product("MI355X", ("75a3", "75b3")),
)


_BY_NAME = {product.name: product for product in PRODUCTS}
_BY_DEVICE_ID = {number: product for product in PRODUCTS for number in product.device_ids}

_PARTITION_RESOURCE = re.compile(r"^amd\.com/((?:spx|dpx|qpx|cpx)_nps[124])$")


def product_of_device_id(device_id: str) -> Product | None:
    """Return the product of this PCI id (hex, any case); the last one of those that share it."""
    return _BY_DEVICE_ID.get(device_id.lower())


def product_of_name(label: str) -> Product | None:
    """Return the product in a product-name label such as AMD_Instinct_MI300X_OAM."""
    return next((_BY_NAME[word] for word in label.split("_") if word in _BY_NAME), None)


def partition_of_resource(resource: str) -> str | None:
    """Return the partition mode such as cpx_nps4 that the resource's name states; None for
    amd.com/gpu."""
    match = _PARTITION_RESOURCE.match(resource)
    return match.group(1) if match else None


def partition_count(partition: str | None) -> int:
    """Return the number of logical devices of one GPU in a mode such as cpx_nps4; 1 for none and
    for an unknown one."""
    return PARTITIONS.get(partition.partition("_")[0], 1) if partition else 1


def shares_memory(partition: str | None) -> bool:
    """Return whether the partitions of one GPU can each address the memory of all (NPS1)."""
    return partition is not None and partition.endswith("_nps1") and partition_count(partition) > 1


def multiplies_fp4(accelerator: Accelerator) -> bool:
    """Return whether the product multiplies fp4; False also if it is unknown."""
    return accelerator.product is not None and _BY_NAME[accelerator.product].multiplies_fp4


def choose_accelerator(spec: AcceleratorSpec, on_nodes: tuple[int, ...] = ()) -> Accelerator:
    """Choose the spec's device. `on_nodes`: the memory sizes of such devices in the cluster.

    Memory in the spec wins. A partitioned GPU's nodes are more exact than the catalogue, which has
    whole GPUs; if nodes disagree, the memory is unknown unless a product settles it.
    """
    stated = quantity_bytes(spec.memory) if spec.memory else None
    if spec.type == "cpu":
        return Accelerator("cpu", stated or quantity_bytes(DEFAULT_CPU_MEMORY))
    product = _BY_NAME[spec.product] if spec.product else None
    groups, name = tuple(spec.device_groups or ()), product.name if product else None
    ids = product.device_ids if product else ()
    if spec.claim is not None:
        claim = DeviceClaim(spec.claim.device_class, ids, spec.claim.partition, stated)
        memory = stated or _known_memory(product, claim.partition, on_nodes)
        return Accelerator(
            "amd", memory, name, claim.resource_name, claim=claim, device_groups=groups
        )
    resource = spec.resource_name or DEFAULT_RESOURCE_NAME
    memory = stated or _known_memory(product, partition_of_resource(resource), on_nodes)
    return Accelerator("amd", memory, name, resource, ids, device_groups=groups)


def _known_memory(
    product: Product | None, partition: str | None, on_nodes: tuple[int, ...]
) -> int | None:
    if product is None or product.memory_gib is None:
        return on_nodes[0] if len(on_nodes) == 1 else None
    share = product.memory_gib * _GIB // partition_count(partition)
    return min((share, *on_nodes))
