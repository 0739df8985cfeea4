"""`kubectl atom gpus`: every AMD device of the cluster, by node and resource. Pure.

Reads nodes, pods and claims by the operator's own functions (plan/inventory.py), so that its output
matches the operator's decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from atom_operator import constants
from atom_operator.api.v1alpha1.common import memory_quantity
from atom_operator.domain import Manifest, ObjectKey
from atom_operator.domain.devices import DevicePicture
from atom_operator.domain.placed_pods import placed_pods
from atom_operator.domain.resources import requests_of
from atom_operator.plan.accelerators import shares_memory
from atom_operator.plan.inventory import (
    PodsAsked,
    amd_resources,
    device_conditions,
    has_resource,
    survey,
)
from atom_operator.plan.node_labels import (
    memory_share_bytes,
    partition_mode,
    products_of,
    unhealthy_devices,
)
from atom_operator.plugin.claimed_gpus import claimed_rows, gone_lines
from atom_operator.plugin.table import table
from atom_operator.pods.accelerator_names import accelerator_asked

_HEADER = ("NODE", "PRODUCT", "RESOURCE", "MEMORY", "DEVICES", "USED", "FREE", "STATE", "HELD BY")
_NOBODY = ObjectKey("", "")
NO_DEVICES = DevicePicture()


def gpu_lines(
    nodes: Sequence[Manifest],
    pods: Sequence[Manifest],
    columns: int | None = None,
    picture: DevicePicture = NO_DEVICES,
) -> Iterator[str]:
    """Yield the table, then all nodes' total of each resource; `picture`: of devices that pods
    claim."""
    rows = _all_rows(nodes, pods, picture)
    if not rows:
        yield (
            "no node has AMD devices; is the device plugin or the DRA driver running? "
            "(kubectl get ds -A | grep -i -e amdgpu -e dra)"
        )
        return
    yield from table(_HEADER, sorted(rows), columns)
    yield ""
    for name in sorted({row[2] for row in rows}):
        of_name = [row for row in rows if row[2] == name]
        devices, used, free = (sum(int(row[column]) for row in of_name) for column in (4, 5, 6))
        yield f"{name}: {devices:,} devices, {used:,} used, {free:,} free for new pods"
    yield from gone_lines(picture, pods)


def gpu_document(
    nodes: Sequence[Manifest], pods: Sequence[Manifest], picture: DevicePicture = NO_DEVICES
) -> list[dict[str, Any]]:
    """Return the rows as -o json and yaml show them."""
    keys = ("node", "product", "resource", "memory", "devices", "used", "free", "state", "heldBy")
    numbers = ("devices", "used", "free")
    return [
        {key: int(text) if key in numbers else text for key, text in zip(keys, row, strict=True)}
        for row in sorted(_all_rows(nodes, pods, picture), key=lambda row: (row[2], row))
    ]


def _all_rows(
    nodes: Sequence[Manifest], pods: Sequence[Manifest], picture: DevicePicture
) -> list[tuple[str, ...]]:
    names = sorted({name for node in nodes for name in amd_resources(node)} | set(_asked_of(pods)))
    by_plugin = [row for name in names for row in _rows(name, nodes, pods)]
    claimed = [tuple(map(str, astuple(row))) for row in claimed_rows(nodes, pods, picture)]
    return [*by_plugin, *claimed]


def _asked_of(pods: Iterable[Manifest]) -> Iterator[str]:
    """Yield the resources that engines ask for, whatever their names."""
    for pod in pods:
        if constants.LABEL_DEPLOYMENT in (pod["metadata"].get("labels") or {}):
            found = accelerator_asked(pod.get("spec") or {})
            if found is not None:
                yield found


def _rows(
    resource: str, nodes: Sequence[Manifest], pods: Sequence[Manifest]
) -> Iterator[tuple[str, ...]]:
    """Yield the nodes that have the resource; a pod is one as we render it, without further
    demands."""
    tolerations = [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    pod_spec: Mapping[str, Any] = {"tolerations": tolerations}
    supply = survey(nodes, placed_pods(pods), PodsAsked(_NOBODY, resource, pod_spec))
    by_name = {node["metadata"]["name"]: node for node in nodes}
    for item in supply.nodes:
        node = by_name[item.name]
        if not has_resource(node, resource):
            continue
        labels = node["metadata"].get("labels") or {}
        memory = memory_share_bytes(labels, resource)
        bad = unhealthy_devices(labels)
        states = [*item.blockers, *device_conditions(node)]
        if item.unhealthy and not item.blockers:
            states.append(f"{item.unhealthy} unhealthy" + (f" ({', '.join(bad)})" if bad else ""))
        yield (
            item.name,
            "/".join(product.name for product in products_of(labels)) or "unknown",
            resource,
            memory_quantity(memory) + _shared(labels, resource) if memory else "unknown",
            str(item.allocatable),
            str(item.requested),
            str(0 if item.blockers else item.free),
            "; ".join(dict.fromkeys(states)) or "ok",
            _holders(item.name, resource, pods) or "-",
        )


def _shared(labels: Mapping[str, str], resource: str) -> str:
    """Mark a share that is not a limit: under NPS1 a partition reaches the whole GPU's memory."""
    return " (share)" if shares_memory(partition_mode(labels, resource)) else ""


def _holders(node: str, resource: str, pods: Iterable[Manifest]) -> str:
    """Name the holders of devices there: AtomDeployments by name, other pods by their own."""
    held: dict[str, int] = {}
    for pod in pods:
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        amount = requests_of(spec)[resource]
        ended = status.get("phase") in ("Succeeded", "Failed")
        if spec.get("nodeName") != node or not amount or ended:
            continue
        metadata = pod["metadata"]
        owner = (metadata.get("labels") or {}).get(constants.LABEL_DEPLOYMENT)
        name = f"{metadata.get('namespace')}/{owner or metadata['name']}"
        held[name] = held.get(name, 0) + amount
    return ", ".join(f"{name} {amount}" for name, amount in sorted(held.items()))
