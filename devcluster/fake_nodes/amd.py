"""AMD accelerators as Kubernetes shows them: the device plugin's resource and the node labeller's
labels. Pure.

Formats follow the code of ROCm/k8s-device-plugin: two label families, the stable one with plain
values on a node whose GPUs agree, the beta one with both the plain and the counted form
(`beta.amd.com/gpu.vram.192G=8`).
"""

from __future__ import annotations

from dataclasses import dataclass

from devcluster.errors import DevclusterError

RESOURCE = "amd.com/gpu"
FAKE_LABEL = "devcluster.atom.dev/fake-node"
NO_KUBELET_TAINT = "devcluster.atom.dev/no-kubelet"
SIMDS_PER_CU = 4


@dataclass(frozen=True, slots=True)
class Product:
    """Hold what the labeller reports of one device in its default (SPX) partition mode; `vram_gib`
    is per device.
    """

    name: str
    product_name: str
    device_id: str
    vram_gib: int
    compute_units: int
    family: str = "AI"


PRODUCTS = {
    product.name: product
    for product in (
        Product("MI210", "AMD_Instinct_MI210", "740f", 64, 104),
        Product("MI300A", "AMD_Instinct_MI300A", "74a0", 128, 228),
        Product("MI300X", "AMD_Instinct_MI300X_OAM", "74a1", 192, 304),
        Product("MI325X", "AMD_Instinct_MI325X", "74a5", 256, 304),
        Product("MI350X", "AMD_Instinct_MI350X", "75a0", 288, 256),
        Product("MI355X", "AMD_Instinct_MI355X", "75a3", 288, 256),
    )
}


def product(name: str) -> Product:
    found = PRODUCTS.get(name.upper())
    if found is None:
        raise DevclusterError(f"unknown AMD product {name}; known are {', '.join(PRODUCTS)}")
    return found


def labels(of: Product, gpus: int) -> dict[str, str]:
    """Labels of a node with `gpus` devices of one product; none for 0."""
    if gpus == 0:
        return {}
    kinds = {
        "family": of.family,
        "device-id": of.device_id,
        "product-name": of.product_name,
        "vram": f"{of.vram_gib}G",
        "cu-count": str(of.compute_units),
        "simd-count": str(of.compute_units * SIMDS_PER_CU),
    }
    stable = {f"amd.com/gpu.{kind}": value for kind, value in kinds.items()}
    beta = {f"beta.amd.com/gpu.{kind}": value for kind, value in kinds.items()}
    counted = {f"beta.amd.com/gpu.{kind}.{value}": str(gpus) for kind, value in kinds.items()}
    return {**stable, **beta, **counted, "feature.node.kubernetes.io/amd-gpu": "true"}


def is_amd_label(key: str) -> bool:
    return (
        key.startswith(("amd.com/gpu.", "beta.amd.com/gpu."))
        or key == "feature.node.kubernetes.io/amd-gpu"
    )
