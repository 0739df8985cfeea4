"""Presents fake AMD nodes: gives the real node GPUs, or creates nodes that exist in the API only.

The real node then admits and runs pods that request `amd.com/gpu`; their containers start without
devices. A created node is an inventory entry: Ready, with capacity and labels, and with a taint,
because no kubelet is there; a pod that tolerates the taint is bound to it and stays Pending. What
was asked for is recorded, and `up` applies it again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from devcluster.api import MERGE, Api
from devcluster.errors import DevclusterError
from devcluster.fake_nodes import amd
from devcluster.settings import Settings

RECORD = "fake-amd.json"
CREATED_CAPACITY = {"cpu": "128", "memory": "2048Gi", "ephemeral-storage": "2048Gi", "pods": "110"}
CREATED_NAME = "amd-{}"
MAX_CREATED = 500


@dataclass(frozen=True, slots=True)
class FakeAmd:
    """One node's GPUs; `create` for a node that exists in the API only."""

    node: str
    gpus: int
    product: str
    create: bool = False


def parse_count(text: str, real_node: str, product: str) -> list[FakeAmd]:
    """`N[:GPUS]` → N nodes with GPUS (8) each: the real node first, then created ones."""
    count, _, gpus = text.partition(":")
    if not count.isdecimal() or not (gpus or "8").isdecimal() or int(count) > MAX_CREATED:
        raise DevclusterError(
            f"--fake-amd-nodes {text} is not N or N:GPUS with N up to {MAX_CREATED}; an example is "
            "2:8"
        )
    names = [real_node, *(CREATED_NAME.format(i) for i in range(1, int(count)))][: int(count)]
    return [FakeAmd(name, int(gpus or "8"), product, create=name != real_node) for name in names]


def present(settings: Settings, api: Api, wanted: list[FakeAmd]) -> None:
    """Applies, and records for the next `up`."""
    known = {fake.node: fake for fake in recorded(settings)}
    for fake in wanted:
        amd.product(fake.product)
        if fake.gpus < 0:
            raise DevclusterError(f"{fake.gpus} GPUs are fewer than none; give 0 or more")
        _apply(api, fake)
        known[fake.node] = fake
    (settings.state / RECORD).write_text(json.dumps([asdict(fake) for fake in known.values()]))


def recorded(settings: Settings) -> list[FakeAmd]:
    try:
        return [FakeAmd(**entry) for entry in json.loads((settings.state / RECORD).read_text())]
    except FileNotFoundError:
        return []


def _apply(api: Api, fake: FakeAmd) -> None:
    path = f"/api/v1/nodes/{fake.node}"
    node = api.find(path)
    if node is None and fake.create:
        node = api.request("POST", "/api/v1/nodes", created_node(fake))
    if node is None:
        raise DevclusterError(
            f"there is no node {fake.node}; give an existing one, or --create to make one that "
            "exists in the API only"
        )
    if fake.create and node["metadata"].get("labels", {}).get(amd.FAKE_LABEL) != "true":
        raise DevclusterError(
            f"node {fake.node} exists and was not created by this tool; leave --create out, or "
            "choose another name"
        )
    api.request("PATCH", path, {"metadata": {"labels": label_changes(node, fake)}}, MERGE)
    resources: dict[str, str | None] = {amd.RESOURCE: str(fake.gpus) if fake.gpus else None}
    status: dict[str, Any] = {"capacity": resources, "allocatable": resources}
    if fake.create:
        status = created_status(fake)
    api.request("PATCH", f"{path}/status", {"status": status}, MERGE)


def label_changes(node: dict[str, Any], fake: FakeAmd) -> dict[str, str | None]:
    """Sets the labels of the product, and removes those of another one that the node had before."""
    wanted = amd.labels(amd.product(fake.product), fake.gpus)
    stale = [
        key
        for key in node["metadata"].get("labels", {})
        if amd.is_amd_label(key) and key not in wanted
    ]
    return {**wanted, **dict.fromkeys(stale)}


def created_node(fake: FakeAmd) -> dict[str, Any]:
    labels = {
        amd.FAKE_LABEL: "true",
        "kubernetes.io/hostname": fake.node,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    taint = {"key": amd.NO_KUBELET_TAINT, "value": "true", "effect": "NoSchedule"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": fake.node, "labels": labels},
        "spec": {"taints": [taint]},
    }


def created_status(fake: FakeAmd) -> dict[str, Any]:
    resources = {**CREATED_CAPACITY, **({amd.RESOURCE: str(fake.gpus)} if fake.gpus else {})}
    healthy = [
        ("MemoryPressure", "False"),
        ("DiskPressure", "False"),
        ("PIDPressure", "False"),
        ("Ready", "True"),
    ]
    conditions = [
        {
            "type": kind,
            "status": status,
            "reason": "FakeNode",
            "message": "a node that exists in the API only",
        }
        for kind, status in healthy
    ]
    return {"capacity": resources, "allocatable": resources, "conditions": conditions}
