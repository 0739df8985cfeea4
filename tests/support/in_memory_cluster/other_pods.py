"""What the pods on nodes hold against another one: host ports, required anti-affinity, which keeps
pods apart whichever of the two asks for it, required affinity, and spread over domains.

Written after the scheduler's filters InterPodAffinity and PodTopologySpread (of one namespace and
of labels alone), and apart from the operator's plan/devices/other_pods.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from atom_operator.domain import POD, Manifest
from tests.support.in_memory_cluster.node_fit import is_selected
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


def lonely(state: ClusterState, node: Manifest, pod: Manifest) -> str | None:
    """The scheduler's words where the pod is to be near others, and is not on that node."""
    affinity = (pod["spec"].get("affinity") or {}).get("podAffinity") or {}
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
    if not terms:
        return None
    nodes = {str(item["metadata"]["name"]): item for item in state.api.nodes or []}
    partners = [one for one in _placed(state) if all(_wants(term, one, pod) for term in terms)]
    found = [(one, nodes[one["spec"]["nodeName"]]) for one in partners]
    words = "node(s) didn't match pod affinity rules"
    keys = [term["topologyKey"] for term in terms]
    if any(_label(node, key) is None for key in keys):
        return words
    if not any(_label(place, key) for _, place in found for key in keys):
        return None if all(_wants(term, pod, pod) for term in terms) else words
    near = (any(_label(place, key) == _label(node, key) for _, place in found) for key in keys)
    return None if all(near) else words


def uneven(state: ClusterState, node: Manifest, pod: Manifest) -> str | None:
    """The scheduler's words where one more pod on the node would make domains too different."""
    words = "node(s) didn't match pod topology spread constraints"
    for rule in pod["spec"].get("topologySpreadConstraints") or ():
        if rule["whenUnsatisfiable"] != "DoNotSchedule":
            continue
        wanted = (rule.get("labelSelector") or {}).get("matchLabels") or {}
        counts = Counter[str]()
        for item in state.api.nodes or []:
            domain = _label(item, rule["topologyKey"])
            if domain is None or not is_selected(item, pod["spec"]):
                continue
            counts[domain] += sum(
                one["spec"]["nodeName"] == item["metadata"]["name"]
                and not one["metadata"].get("deletionTimestamp")
                and one["metadata"].get("namespace") == pod["metadata"].get("namespace")
                and wanted.items() <= (one["metadata"].get("labels") or {}).items()
                for one in _placed(state)
            )
        own = _label(node, rule["topologyKey"])
        itself = wanted.items() <= (pod["metadata"].get("labels") or {}).items()
        if own is None or counts[own] + itself - min(counts.values(), default=0) > rule["maxSkew"]:
            return words
    return None


def _wants(term: Manifest, one: Manifest, pod: Manifest) -> bool:
    """Whether a term of `pod` names `one`."""
    namespace = pod["metadata"].get("namespace")
    named = one["metadata"].get("namespace") in (term.get("namespaces") or [namespace])
    wanted = (term.get("labelSelector") or {}).get("matchLabels") or {}
    return bool(named and wanted.items() <= (one["metadata"].get("labels") or {}).items())


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
