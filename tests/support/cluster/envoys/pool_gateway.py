"""A Gateway whose backend is an InferencePool, as the API server has it: a real Envoy in the
cluster's network asks the pool's picker which pod a request goes to, and goes on without it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.cluster.envoys.node_envoy import envoy
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.server import envoy_document as parts
from tests.support.server.envoy_process import written
from tests.support.waiting import HANG_SECONDS, wait_until

_EVERYWHERE, _HERE = "0.0.0.0", "127.0.0.1"
_PICKED, _NAMED, _SPREAD, _ADDRESSED = _PORTS = 10090, 10091, 10092, 10093


@dataclass(frozen=True)
class PoolGateway:
    """picked: to the pod that the picker names, and in its absence to any; named: to that pod
    alone; spread: to any, by the Service; addressed: to the one that the request names itself."""

    picked: str
    named: str
    spread: str
    addressed: str


@contextmanager
def pool_gateway(cluster: LiveCluster, pool: str, folder: Path) -> Iterator[PoolGateway]:
    """Ends with the block. The Service of the pods has the pool's name."""
    spec = (cluster.get("inferencepool", pool) or {})["spec"]
    picker = spec["endpointPickerRef"]
    assert picker["failureMode"] == "FailOpen", "a gateway that may go on without a picker"
    asked = (_cluster_address(cluster, picker["name"]), picker["port"]["number"])
    (port,) = (item["number"] for item in spec["targetPorts"])
    document = _document(asked, (_cluster_address(cluster, pool), port))
    with envoy(written(document, folder)) as host:
        for number in _PORTS:
            wait_until(lambda number=number: _listens(host, number), f"Envoy listens at {number}")
        yield PoolGateway(*(f"http://{host}:{number}" for number in _PORTS))


def _listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), HANG_SECONDS):
        return True
    return False


def _cluster_address(cluster: LiveCluster, service: str) -> str:
    return str((cluster.get("service", service) or {})["spec"]["clusterIP"])


def _document(picker: parts.Address, service: parts.Address) -> dict[str, Any]:
    in_order = parts.route("in-order", parts.NEXT_IN_ORDER)
    to_any = parts.route("service", parts.OTHER_SERVER)
    listeners = [
        parts.listener("picked", (_EVERYWHERE, _PICKED), in_order),
        parts.listener("named", (_EVERYWHERE, _NAMED), parts.route("pods"), parts.ask_picker()),
        parts.listener("spread", (_EVERYWHERE, _SPREAD), to_any),
        parts.listener("addressed", (_EVERYWHERE, _ADDRESSED), parts.route("pods")),
    ]
    # kube-proxy draws a pod for each connection.
    drawn = parts.protocol(
        common_http_protocol_options={"max_requests_per_connection": 1},
        explicit_http_config={"http_protocol_options": {}},
    )
    clusters = [
        parts.in_order_cluster([(_HERE, _NAMED), (_HERE, _SPREAD)]),
        _named_pods(),
        parts.cluster("service", [service], connect_timeout="2s", **drawn),
        parts.picker_cluster(picker),
    ]
    return {"static_resources": {"listeners": listeners, "clusters": clusters}}


def _named_pods() -> dict[str, Any]:
    """Whichever the picker's header names."""
    return {
        "name": "pods",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "2s",
        "original_dst_lb_config": {
            "use_http_header": True,
            "http_header_name": parts.DESTINATION,
        },
    }
