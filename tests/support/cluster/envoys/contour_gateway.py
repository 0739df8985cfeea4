"""A Gateway as a site has it: Contour reads the routes and answers them, its Envoy carries them
out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster import target
from devcluster.neighbours import contour
from devcluster.programs.binaries import plan_build
from devcluster.shell import run
from tests.support.cluster import neighbours
from tests.support.cluster.envoys.node_envoy import envoy
from tests.support.cluster.live_cluster import LiveCluster

PARENT = {"name": contour.GATEWAY, "namespace": contour.NAMESPACE}  # as a route names it


@dataclass(frozen=True, slots=True)
class ContourGateway:
    """`url`: where requests come in; `metrics`: host:port of what Envoy counts."""

    url: str
    metrics: str


@contextmanager
def contour_gateway(folder: Path) -> Iterator[ContourGateway]:
    """Start both. Its Envoy takes its configuration from Contour, and ends with the block."""
    neighbours.ensure("contour")
    config = folder / "envoy.json"
    settings = target.resolve(os.environ).settings
    program = plan_build(contour.GROUP, settings.cache / "bin").outputs["contour"]
    run(
        [
            str(program),
            "bootstrap",
            str(config),
            "--xds-address=127.0.0.1",
            f"--xds-port={contour.XDS_PORT}",
            f"--admin-address={folder / 'admin.sock'}",
            f"--namespace={contour.NAMESPACE}",
        ]
    )
    with envoy(config, "--service-cluster", "contour", "--service-node", "gate") as address:
        yield ContourGateway(
            f"http://{address}:{contour.ENVOY_PORT}", f"{address}:{contour.STATS_PORT}"
        )


def said_by_contour(cluster: LiveCluster, route: str) -> dict[str, str]:
    """Type → status of the conditions that Contour wrote about the newest version of a route."""
    found: dict[str, Any] = cluster.get("httproute", route) or {}
    generation = (found.get("metadata") or {}).get("generation")
    return {
        item["type"]: item["status"]
        for parent in (found.get("status") or {}).get("parents", ())
        if parent["controllerName"] == contour.CONTROLLER
        for item in parent["conditions"]
        if item["observedGeneration"] == generation
    }
