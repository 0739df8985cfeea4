"""What `status` shows: one frozen value, as a table for people or as JSON for programs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from devcluster import health
from devcluster.api import Api, ApiError
from devcluster.cluster import NODE_NAME
from devcluster.errors import DevclusterError
from devcluster.fake_nodes import amd
from devcluster.images import image_store
from devcluster.node import network, node_process
from devcluster.settings import Settings


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    name: str
    pid: int | None  # on the host
    ready: bool
    restarts: int
    last_exit: str


@dataclass(frozen=True, slots=True)
class NodeStatus:
    name: str
    ready: bool
    gpus: str
    product: str


@dataclass(frozen=True, slots=True)
class Status:
    """`state` is up, unhealthy or down; `problems` says why it is not up."""

    state: str
    kubeconfig: str
    api: str
    node_process_pid: int | None
    problems: tuple[str, ...]
    components: tuple[ComponentStatus, ...]
    nodes: tuple[NodeStatus, ...]
    images: tuple[str, ...]


def read(settings: Settings) -> Status:
    link = network.uplink(settings.instance)
    found = node_process.find(settings)
    if found is None:
        stopped: tuple[str, ...] = (
            ("the node process is not running",) if settings.state.exists() else ()
        )
        return Status("down", str(settings.kubeconfig), link.api_url, None, stopped, (), (), ())
    api = health.api_of(settings, link.api_url)
    seen = health.observe(settings, api)
    problems = tuple(seen.problems(NODE_NAME)) + seen.notes
    pids = node_process.host_pids(found)
    components = tuple(
        ComponentStatus(c.name, pids.get(c.pid_inside or 0), c.ready, c.restarts, c.last_exit)
        for c in seen.components
    )
    state = "unhealthy" if problems else "up"
    return Status(
        state,
        str(settings.kubeconfig),
        link.api_url,
        found.pid,
        problems,
        components,
        _nodes(api),
        _images(settings),
    )


def _nodes(api: Api) -> tuple[NodeStatus, ...]:
    try:
        return tuple(_node(item) for item in api.get("/api/v1/nodes")["items"])
    except ApiError:
        return ()


def _node(item: dict[str, Any]) -> NodeStatus:
    gpus = item.get("status", {}).get("allocatable", {}).get(amd.RESOURCE, "0")
    product = item["metadata"].get("labels", {}).get("amd.com/gpu.product-name", "")
    return NodeStatus(item["metadata"]["name"], health.is_true(item, "Ready"), gpus, product)


def _images(settings: Settings) -> tuple[str, ...]:
    try:
        return tuple(image_store.loaded_images(settings))
    except DevclusterError:
        return ()


def as_json(status: Status) -> str:
    return json.dumps(asdict(status), indent=1)


def as_text(status: Status) -> str:
    lines = [f"cluster     {status.state}"]
    lines += [f"problem     {problem}" for problem in status.problems]
    if status.node_process_pid is None:
        return "\n".join(lines)
    lines += [f"api         {status.api}", f"kubeconfig  {status.kubeconfig}", ""]
    lines.append(f"{'COMPONENT':<20}{'PID':>8}  {'READY':<6}{'RESTARTS':>8}  LAST EXIT")
    lines += [
        f"{c.name:<20}{c.pid or '-':>8}  {_yes(c.ready):<6}{c.restarts:>8}  {c.last_exit}"
        for c in status.components
    ]
    lines += ["", f"{'NODE':<20}{'READY':<8}{'AMD GPUS':<10}PRODUCT"]
    lines += [f"{n.name:<20}{_yes(n.ready):<8}{n.gpus:<10}{n.product}" for n in status.nodes]
    lines += ["", "IMAGES", *status.images]
    return "\n".join(lines)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
