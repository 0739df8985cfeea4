"""Resources that pods take: of a node, resource by resource, and of a ResourceQuota. Whole numbers,
pure.

cpu is in thousandths of a core; everything else in its own unit (bytes, devices, pods). A host port
is a resource of which every node has one. A malformed quantity counts as nothing: the API server
refuses it. See https://kubernetes.io/docs/concepts/policy/resource-quotas for the names.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from atom_operator.api.v1alpha1.common import memory_quantity

Resources = Mapping[str, int]
CPU, MEMORY, EPHEMERAL_STORAGE, PODS = "cpu", "memory", "ephemeral-storage", "pods"
_HOST_PORT = "host port "
# Every node has these; a report without one states nothing about it.
NATIVE = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE, PODS})
_SIZES = (MEMORY, EPHEMERAL_STORAGE, "hugepages-")
_QUANTITY = re.compile(
    r"([0-9]+\.?[0-9]*|\.[0-9]+)(?:([eE][+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i))?"
)
_POWERS = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = "KMGTPE"


class LimitAsked(NamedTuple):
    """A limit that a ResourceQuota counts and that a container of a pod does not state."""

    container: str
    resource: str  # cpu or memory: the only resources of which a quota wants a limit stated


@lru_cache(maxsize=4096)
def amount(resource: str, quantity: str) -> int:
    """Return a Kubernetes quantity of a resource, rounded up; 0 if the text is no quantity."""
    value = exact_quantity(quantity) or Fraction(0)
    return math.ceil(value * 1000 if _is_cpu(resource) else value)


def exact_quantity(text: str) -> Fraction | None:
    """Return the value of an unsigned Kubernetes quantity; None if the text is invalid."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    number, exponent, unit = match.groups()
    value = Fraction(number)
    if exponent:
        value *= Fraction(10) ** int(exponent[1:])
    elif unit and unit.endswith("i"):
        value *= 1024 ** (_BINARY.index(unit[0]) + 1)
    elif unit:
        value *= Fraction(10) ** _POWERS[unit]
    return value


def requests_of(pod_spec: Mapping[str, Any]) -> Counter[str]:
    """Return the resources that the scheduler reserves for a pod: its containers and sidecars
    together, or its largest init step with the sidecars that run by then; the pod's place itself;
    its host ports."""
    return _of_pod(pod_spec, "requests")


def quota_usage(pod_spec: Mapping[str, Any]) -> Counter[str]:
    """Return a pod's charge to a ResourceQuota, under every name that one may use."""
    usage = Counter({"pods": 1, "count/pods": 1})
    for name, taken in _of_pod(pod_spec, "requests").items():
        if name == PODS or is_host_port(name):
            continue
        usage[f"requests.{name}"] = taken
        if name in NATIVE or name.startswith("hugepages-"):
            usage[name] = taken
    for name, taken in _of_pod(pod_spec, "limits").items():
        if name != PODS and not is_host_port(name):
            usage[f"limits.{name}"] = taken
    return usage


def given_back(pods: Iterable[Resources], resource: str, count: int) -> int:
    """Return the least amount of a resource that `count` of these pods give back, whichever they
    are."""
    return sum(sorted(pod.get(resource, 0) for pod in pods)[:count]) if count else 0


def amount_text(resource: str, taken: int) -> str:
    """Return an amount with its resource, for people."""
    if is_host_port(resource):
        return resource
    if _is_cpu(resource):
        return f"{taken / 1000:g} {resource}"
    if any(
        resource.removeprefix("requests.").removeprefix("limits.").startswith(name)
        for name in _SIZES
    ):
        return f"{memory_quantity(taken)} {resource}"
    return f"{taken} {resource}"


def _of_pod(pod_spec: Mapping[str, Any], field: str) -> Counter[str]:
    together: Counter[str] = Counter()
    for container in _items(pod_spec.get("containers")):
        together.update(_of_container(container, field))
    sidecars, largest = Counter[str](), Counter[str]()
    for container in _items(pod_spec.get("initContainers")):
        own = Counter(_of_container(container, field))
        if container.get("restartPolicy") == "Always":  # a sidecar runs as long as the pod
            sidecars.update(own)
            largest |= sidecars
        else:
            largest |= sidecars + own
    total = (together + sidecars) | largest
    # The pod's own amounts, if it has some, replace those of its containers.
    total |= Counter(_amounts(_map(pod_spec.get("resources")).get(field)))
    total.update(_amounts(pod_spec.get("overhead")))
    total[PODS] = 1
    total.update(f"{_HOST_PORT}{port}" for port in host_ports(pod_spec))
    return total


def _of_container(container: Mapping[str, Any], field: str) -> dict[str, int]:
    """Return a container's limits or requests; a resource with a limit and no request requests its
    limit."""
    resources = _map(container.get("resources"))
    limits = _amounts(resources.get("limits"))
    return limits if field == "limits" else {**limits, **_amounts(resources.get("requests"))}


@dataclass(frozen=True, slots=True, order=True)
class HostPort:
    """A port of a node; the same number of another protocol is another port."""

    number: int
    protocol: str

    def __str__(self) -> str:
        return f"{self.protocol}/{self.number}"


def host_ports(pod_spec: Mapping[str, Any]) -> frozenset[HostPort]:
    """List the ports of its node that a pod takes for as long as it runs."""
    sidecars = (
        item
        for item in _items(pod_spec.get("initContainers"))
        if item.get("restartPolicy") == "Always"
    )
    on_host = pod_spec.get("hostNetwork") is True
    return frozenset(
        HostPort(number, str(port.get("protocol") or "TCP"))
        for container in (*_items(pod_spec.get("containers")), *sidecars)
        for port in _items(container.get("ports"))
        if isinstance(
            number := port.get("hostPort") or (port.get("containerPort") if on_host else None), int
        )
    )


def is_host_port(resource: str) -> bool:
    """Return whether the resource represents a port of the node, which only one pod can have."""
    return resource.startswith(_HOST_PORT)


def _amounts(quantities: object) -> dict[str, int]:
    if not isinstance(quantities, Mapping):
        return {}
    return {str(name): amount(str(name), str(value)) for name, value in quantities.items()}


def _is_cpu(resource: str) -> bool:
    return resource in (CPU, "requests.cpu", "limits.cpu")


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: object) -> Sequence[Mapping[str, Any]]:
    found = value if isinstance(value, list | tuple) else ()
    return [item for item in found if isinstance(item, Mapping)]
