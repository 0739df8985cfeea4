"""The catalogue of AMD devices, and the Accelerator that a spec asks for.

Memory is per logical device in SPX mode (an MI250 module shows as two devices). Data and pure
lookups; nodes are not asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom_operator.api.v1alpha1.atomdeployment import AcceleratorSpec
from atom_operator.api.v1alpha1.common import quantity_bytes
from atom_operator.domain import Accelerator

DEFAULT_RESOURCE_NAME = "amd.com/gpu"
DEFAULT_CPU_MEMORY = "4Gi"
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Product:
    """One GPU product. `device_ids` are PCI ids, virtual functions included."""

    name: str
    memory_gib: int | None
    device_ids: tuple[str, ...]


# AMD's device ids; MI308X has no memory here because sources disagree about it.
PRODUCTS = (
    Product("MI100", 32, ("738c", "738e")),
    Product("MI210", 64, ("740f", "7410")),
    Product("MI250", 64, ("740c",)),
    Product("MI250X", 64, ("7408", "740c")),
    Product("MI300A", 128, ("74a0",)),
    Product("MI300X", 192, ("74a1", "74a9", "74bd", "74b5")),
    Product("MI308X", None, ("74a2", "74a8", "74b6")),
    Product("MI325X", 256, ("74a5", "74b9")),
    Product("MI350X", 288, ("75a0", "75b0")),
    Product("MI355X", 288, ("75a3", "75b3")),
)


_BY_NAME = {product.name: product for product in PRODUCTS}


def choose_accelerator(spec: AcceleratorSpec) -> Accelerator:
    """The device that the spec names; memory in the spec wins over the catalogue's."""
    stated = quantity_bytes(spec.memory) if spec.memory else None
    if spec.type == "cpu":
        return Accelerator("cpu", stated or quantity_bytes(DEFAULT_CPU_MEMORY))
    product = _BY_NAME[spec.product] if spec.product else None
    known = product.memory_gib * _GIB if product and product.memory_gib else None
    return Accelerator(
        "amd",
        stated or known,
        resource_name=spec.resource_name or DEFAULT_RESOURCE_NAME,
        device_ids=product.device_ids if product else (),
    )
