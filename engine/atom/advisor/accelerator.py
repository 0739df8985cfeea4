"""The card of an AtomDeployment: spec.accelerator, written and read. Pure; plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom.advisor.partitions import MARK, whole_and_mode
from atom.sizing.cards import CARDS, Card, Vendor
from atom.sizing.host_tier import GIB

API_VERSION, KIND = "serving.atom.dev/v1alpha1", "AtomDeployment"
_NVIDIA_RESOURCE = "nvidia.com/gpu"


def accelerator_of(card: Card, per_pod: int) -> dict[str, Any]:
    """Write spec.accelerator. per_pod: devices of a pod; those of a CPU share the pod's memory."""
    if card.vendor is Vendor.AMD:
        product, mode = whole_and_mode(card.name)
        found: dict[str, Any] = {"type": "amd", "product": product}
        return found | ({"claim": {"partition": mode}} if mode else {})
    if card.vendor is Vendor.NVIDIA:
        memory = _memory(card)
        return {"type": "amd", "resourceName": _NVIDIA_RESOURCE, "memory": memory}
    return {"type": "cpu", "memory": str(card.memory_bytes * per_pod)}


def card_of(spec: Mapping[str, Any]) -> str | None:
    """Return the name of the card of a spec, as `accelerator_of` writes it; None if it is
    unknown."""
    accelerator = spec.get("accelerator")
    if not isinstance(accelerator, Mapping):
        return None
    product, claim = accelerator.get("product"), accelerator.get("claim")
    mode = claim.get("partition") if isinstance(claim, Mapping) else None
    if product in CARDS:
        return f"{product}{MARK}{mode}" if mode else str(product)
    if accelerator.get("resourceName") != _NVIDIA_RESOURCE:
        return None
    named = [
        card.name
        for card in CARDS.values()
        if card.vendor is Vendor.NVIDIA and accelerator.get("memory") == _memory(card)
    ]
    return named[0] if len(named) == 1 else None


def _memory(card: Card) -> str:
    """Write the memory of a card exactly, since its plan depends on it."""
    whole, rest = divmod(card.memory_bytes, GIB)
    return str(card.memory_bytes) if rest else f"{whole}Gi"
