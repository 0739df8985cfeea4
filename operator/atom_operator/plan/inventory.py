"""The accelerators of the cluster: how many of a resource each node has, free, and for us. Pure.

Free is allocatable minus the requests of scheduled pods, of the exact resource. Allocatable leaves
out devices that the plugin reports as unhealthy. Called by reconcile with the nodes and pods that
it read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from atom_operator.domain import Amount, Manifest, NodeSupply, ObjectKey, Observed, Plan, Supply
from atom_operator.domain.nodes import Nodes
from atom_operator.domain.placed_pods import PlacedPod, PlacedPods
from atom_operator.domain.resources import (
    NATIVE,
    Resources,
    amount,
    is_host_port,
    requests_of,
)
from atom_operator.plan.eligibility import (
    is_ready,
    node_blockers,
    own_selectors_apart,
    volume_blockers,
)
from atom_operator.plan.node_labels import node_autoscaler, share_on, unhealthy_devices
from atom_operator.plan.placement import Placement, placement_of
from atom_operator.pods.accelerator_names import is_amd

_APART = "host of its own (podAntiAffinity)"


@dataclass(frozen=True, slots=True)
class PodsAsked:
    """Describe pods that want room: of an AtomDeployment (`key`), with this pod spec, each with
    devices of `resource` (None: without any). revision: pods that have it already make no room for
    others of it. labels: of such a pod. at_least: the observed requests of such a pod, which
    LimitRanges and injected sidecars raise above the spec."""

    key: ObjectKey
    resource: str | None
    pod_spec: Mapping[str, Any]
    revision: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    at_least: Resources = field(default_factory=dict)
    volumes: tuple[tuple[str, Placement], ...] = ()  # claims with the nodes of their volumes
    placement: Placement = field(init=False)  # of the pod spec, read once

    def __post_init__(self) -> None:
        object.__setattr__(self, "placement", placement_of(self.pod_spec))


def pods_asked(
    plan: Plan,
    template: Manifest,
    revision: str | None = None,
    observed: Observed | None = None,
    volumes: tuple[tuple[str, Placement], ...] = (),
) -> PodsAsked:
    """Return the pods of a plan by their finished template; `observed`: some that find no node."""
    at_least: Counter[str] = Counter()
    for pod in observed.pods if observed is not None else ():
        if pod.placement.requests is not None and pod.revision == revision:
            at_least |= Counter(pod.placement.requests)
    if plan.accelerator.claim is not None:
        at_least[plan.accelerator.claim.resource_name] = plan.engine.devices_per_pod
    return PodsAsked(
        plan.identity.key,
        plan.accelerator.resource_name,
        template.get("spec") or {},
        revision,
        labels=(template.get("metadata") or {}).get("labels") or {},
        at_least=at_least,
        volumes=volumes,
    )


def survey(nodes: Iterable[Manifest], pods: PlacedPods, asked: PodsAsked) -> Supply:
    """Return the cluster's supply for the requested pods; if they need devices, nodes without the
    resource and without any AMD device are left out."""
    demand = requests_of(asked.pod_spec) | Counter(asked.at_least)
    apart = own_selectors_apart(asked.pod_spec, asked.labels)
    ours = pods.of(asked.key)
    if apart:
        demand[_APART] = 1
    known = Nodes.of(nodes)
    ordered = _node_supplies(known, pods, demand, asked)
    if apart:
        ordered = _kept_apart(ordered, pods, ours, asked, apart)
    blocked = {node.name for node in ordered if node.blockers}
    return Supply(
        asked.resource,
        demand,
        ordered,
        stuck=sum(pod.ends and pod.node in blocked for pod in ours),
        lost=known.once("lost", lambda: _lost(known)),
        node_autoscaler=known.once("node autoscaler", lambda: node_autoscaler(known)),
        arrived=sum(
            pod.revision is not None and pod.revision == asked.revision and not pod.ends
            for pod in ours
        ),
    )


def _lost(nodes: Nodes) -> frozenset[str]:
    return frozenset(str(node["metadata"]["name"]) for node in nodes if not is_ready(node))


def _node_supplies(
    nodes: Nodes, pods: PlacedPods, demand: Resources, asked: PodsAsked
) -> tuple[NodeSupply, ...]:
    """Return each node's supply, by name; nodes without the AtomDeployment's pods are computed once
    for all AtomDeployments with equal requests."""

    def strangers() -> dict[str, tuple[Manifest, NodeSupply]]:
        fit = (node for node in nodes if _may_fit(node, asked.resource))
        named = sorted(((node["metadata"]["name"], node) for node in fit), key=itemgetter(0))
        return {
            name: (node, _node_supply(node, demand, pods.requested, (), asked))
            for name, node in named
        }

    alike = (asked.resource, frozenset(demand.items()), asked.placement, asked.volumes)
    ours = pods.of(asked.key)
    here = {pod.node for pod in ours}
    return tuple(
        _node_supply(node, demand, pods.requested, _there(name, ours), asked)
        if name in here
        else supply
        for name, (node, supply) in nodes.once((pods, alike), strangers).items()
    )


def _there(node: str, pods: Iterable[PlacedPod]) -> list[PlacedPod]:
    return [pod for pod in pods if pod.node == node]


def makes_room(pod: PlacedPod, asked: PodsAsked) -> bool:
    """Return whether a pod of the AtomDeployment goes for one that is asked for."""
    return asked.revision is None or pod.revision != asked.revision


def _node_supply(
    node: Manifest,
    demand: Resources,
    requested: Mapping[str, Resources],
    ours: Sequence[PlacedPod],
    asked: PodsAsked,
) -> NodeSupply:
    offered, resource = (node.get("status") or {}).get("allocatable") or {}, asked.resource
    taken = requested.get(node["metadata"]["name"], {})
    lacks = _lacks(node, resource) if resource else ()
    return NodeSupply(
        name=node["metadata"]["name"],
        amounts={
            name: Amount(
                allocatable=_offered(offered, name),
                requested=taken.get(name, 0),
                held=sum(pod.requests.get(name, 0) for pod in ours),
            )
            for name in (*demand, *((resource,) if resource else ()))
        },
        resource=resource,
        replaced=tuple(pod.requests for pod in ours if makes_room(pod, asked)),
        placed=sum(not pod.ends for pod in ours),
        unhealthy=devices_out(node, resource) if resource else 0,
        blockers=(
            *lacks,
            *node_blockers(node, asked.placement),
            *volume_blockers(node, asked.volumes),
        ),
    )


def _offered(offered: Mapping[str, Any], name: str) -> int | None:
    if name == _APART or is_host_port(name):
        return 1
    found = offered.get(name)
    if found is None:
        return None if name in NATIVE else 0
    return amount(name, str(found))


def _kept_apart(
    nodes: Iterable[NodeSupply],
    pods: PlacedPods,
    ours: Sequence[PlacedPod],
    asked: PodsAsked,
    selectors: Sequence[Mapping[str, str]],
) -> tuple[NodeSupply, ...]:
    """Return the nodes with the one place that pods leave on a host whose own required
    anti-affinity keeps them apart: an old pod of a rollout holds it like a device."""
    found = []
    for node in nodes:
        near = [
            pod
            for pod in _there(node.name, pods.pods)
            if pod.namespace == asked.key.namespace
            and any(selector.items() <= pod.labels.items() for selector in selectors)
        ]
        place = Amount(1, len(near), sum(pod in ours for pod in near))
        replaced = tuple(
            {**pod.requests, _APART: int(pod in near)}
            for pod in _there(node.name, ours)
            if makes_room(pod, asked)
        )
        found.append(replace(node, amounts={**node.amounts, _APART: place}, replaced=replaced))
    return tuple(found)


def memory_per_device(
    nodes: Iterable[Manifest], resource: str, device_ids: tuple[str, ...]
) -> tuple[int, ...]:
    """Return the distinct memory shares of one device of `resource` on the nodes that have it,
    sorted.

    With `device_ids`, of the nodes with one of these. Nodes whose memory is unknown are skipped.
    """
    known = Nodes.of(nodes)

    def read() -> tuple[int, ...]:
        shares = (
            share_on(node["metadata"].get("labels") or {}, resource, device_ids)
            for node in known
            if allocatable_of(node, resource)
        )
        return tuple(sorted({memory for memory in shares if memory is not None}))

    return known.once((resource, device_ids), read)


def _may_fit(node: Manifest, resource: str | None) -> bool:
    """Return whether a node counts for pods that request `resource`, whatever its name; nodes with
    AMD devices under other names explain why they take none."""
    return resource is None or has_resource(node, resource) or bool(amd_resources(node))


def has_resource(node: Manifest, resource: str) -> bool:
    """Return whether the node has ever had the resource, also when all devices are unhealthy."""
    return resource in _resource_names(node)


def amd_resources(node: Manifest) -> tuple[str, ...]:
    """Return the AMD resources that the node has ever had, also when all devices are unhealthy."""
    return tuple(sorted(name for name in _resource_names(node) if is_amd(name)))


def _resource_names(node: Manifest) -> Iterable[str]:
    status: Mapping[str, Any] = node.get("status") or {}
    return {**(status.get("capacity") or {}), **(status.get("allocatable") or {})}


def allocatable_of(node: Manifest, resource: str) -> int:
    return _count((node.get("status") or {}).get("allocatable"), resource)


def devices_out(node: Manifest, resource: str) -> int:
    """Count the devices that the plugin has taken out of allocatable. A kubelet without a plugin
    for five minutes knows of no device, so none is out."""
    capacity = _count((node.get("status") or {}).get("capacity"), resource)
    return max(0, capacity - allocatable_of(node, resource))


def device_conditions(node: Manifest) -> tuple[str, ...]:
    """Return node-problem-detector's complaints about the devices; the scheduler does not act on
    them."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return tuple(
        str(item["type"])
        for item in conditions
        if str(item.get("type", "")).startswith("AMDGPU") and item.get("status") == "True"
    )


def _lacks(node: Manifest, resource: str) -> tuple[str, ...]:
    """Return why the node itself offers less of the resource than its hardware suggests."""
    if allocatable_of(node, resource):
        return ()
    if _count((node.get("status") or {}).get("capacity"), resource):
        ids = ", ".join(unhealthy_devices(node["metadata"].get("labels") or {}))
        return (f"every {resource} is unhealthy" + (f" (devices {ids})" if ids else ""),)
    others = ", ".join(name for name in amd_resources(node) if name != resource)
    return (f"has {others} and no {resource}" if others else f"has no {resource}",)


def _count(quantities: object, resource: str) -> int:
    text = str(quantities.get(resource, 0)) if isinstance(quantities, Mapping) else ""
    return int(text) if text.isdigit() else 0  # extended resources are whole numbers
