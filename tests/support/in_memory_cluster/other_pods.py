"""What the pods on nodes hold against another one: host ports, and required anti-affinity, which
keeps pods apart whichever of the two asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from atom_operator.domain import POD, Manifest
from tests.support.in_memory_cluster.state import ClusterState, is_terminal

_HOSTNAME = "kubernetes.io/hostname"  # with which every kubelet labels its node


def takes_port(state: ClusterState, node: Manifest, pod: Manifest) -> bool:
    """Whether a port of the node that the pod asks for is another pod's."""
    wanted = set(_host_ports(pod))
    return bool(wanted) and any(
        wanted & set(_host_ports(other))
        for other in _placed(state)
        if other["spec"]["nodeName"] == node["metadata"]["name"]
    )


def apart(state: ClusterState, node: Manifest, pod: Manifest) -> str | None:
    """The scheduler's words where the pod and one that has a node are to be apart."""
    nodes = {str(item["metadata"]["name"]): item for item in state.api.nodes or []}
    others = [(other, nodes.get(str(other["spec"]["nodeName"]))) for other in _placed(state)]
    for other, place in others:
        if place is not None and _keeps_off(other, pod, place, node):
            return "node(s) didn't satisfy existing pods anti-affinity rules"
    for other, place in others:
        if place is not None and _keeps_off(pod, other, node, place):
            return "node(s) didn't match pod anti-affinity rules"
    return None


def _placed(state: ClusterState) -> list[Manifest]:
    return [pod for pod in state.all(POD) if pod["spec"].get("nodeName") and not is_terminal(pod)]


def _host_ports(pod: Manifest) -> Iterator[tuple[int, str]]:
    for container in pod["spec"].get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("hostPort"):
                yield int(port["hostPort"]), str(port.get("protocol", "TCP"))


def _keeps_off(asks: Manifest, other: Manifest, one: Manifest, place: Manifest) -> bool:
    """Whether a term of `asks`, on node `one`, is against `other` on node `place`."""
    affinity = (asks["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
    mine, theirs = asks["metadata"].get("namespace"), other["metadata"].get("namespace")
    for term in affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ():
        domain = _label(one, term["topologyKey"])
        named = theirs in (term.get("namespaces") or [mine])
        if named and domain is not None and domain == _label(place, term["topologyKey"]):
            labels: Mapping[str, Any] = other["metadata"].get("labels") or {}
            wanted = (term.get("labelSelector") or {}).get("matchLabels") or {}
            if wanted.items() <= labels.items():
                return True
    return False


def _label(node: Manifest, key: str) -> str | None:
    labels = {_HOSTNAME: node["metadata"]["name"], **(node["metadata"].get("labels") or {})}
    return labels.get(key)
