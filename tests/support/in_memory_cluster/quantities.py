"""Quantities as Kubernetes writes them ("500m", "1Gi", "1e3"), and what pods ask for of each.

Amounts are whole thousandths, so that sums are exact. Knows the rule by which a pod's request
follows from its containers (KEP-753), and no node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}

Amounts = Counter[str]


@lru_cache(maxsize=4096)
def thousandths(quantity: str) -> int:
    """A quantity in thousandths of its unit, rounded up as the API server does."""
    for suffix, power in _BINARY.items():
        if quantity.endswith(suffix):
            return _up(Fraction(quantity.removesuffix(suffix)) * 1024**power)
    if quantity.endswith("m"):
        return int(quantity.removesuffix("m"))
    if quantity[-1:] in _DECIMAL:
        return _up(Fraction(quantity[:-1]) * 10 ** _DECIMAL[quantity[-1]])
    return _up(Fraction(quantity))


def text(amount: int) -> str:
    """The shortest way to write an amount."""
    if amount % 1000:
        return f"{amount}m"
    whole = amount // 1000
    for suffix, power in reversed(_BINARY.items()):
        if whole and whole % 1024**power == 0:
            return f"{whole // 1024**power}{suffix}"
    return str(whole)


def requests_of(pod_spec: Mapping[str, Any]) -> Amounts:
    """What a node gives to such a pod: its containers and sidecars together, or the largest step of
    its start."""
    return _of_pod(pod_spec, "requests")


def limits_of(pod_spec: Mapping[str, Any]) -> Amounts:
    return _of_pod(pod_spec, "limits")


def of_container(container: Mapping[str, Any], side: str) -> Amounts:
    """One container's requests or limits; a limit alone is a request too."""
    resources = container.get("resources") or {}
    found = dict(resources.get(side) or {})
    if side == "requests":
        found = {**(resources.get("limits") or {}), **found}
    return Counter({name: thousandths(str(value)) for name, value in found.items()})


def _of_pod(pod_spec: Mapping[str, Any], side: str) -> Amounts:
    together = Counter[str]()
    for item in pod_spec.get("containers") or ():
        together.update(of_container(item, side))
    largest, sidecars = Counter[str](), Counter[str]()
    for item in pod_spec.get("initContainers") or ():
        own = of_container(item, side)
        if item.get("restartPolicy") == "Always":
            sidecars.update(own)
            own = sidecars
        else:
            own = own + sidecars
        largest |= own
    return (together + sidecars) | largest


def _up(value: Fraction) -> int:
    return -int(-(value * 1000) // 1)
