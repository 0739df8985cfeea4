"""Envoy before servers, as gateways set it up for an InferencePool: an endpoint picker names the
server of each request, and any that is well takes the request that nobody is named for.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.engine.agents.session import check_installed
from tests.support.server.server_process import reserved_port
from tests.support.waiting import HANG_SECONDS, wait_until
from tools.pinned_environments import GATEWAY, python_bin

Address = tuple[str, int]
_TYPES = "type.googleapis.com/envoy.extensions"
_DESTINATION = "x-gateway-destination-endpoint"


@dataclass(frozen=True)
class Envoy:
    """picked: where the picker is asked, and in its absence the servers in turn; spread: to the
    servers in turn, as a Service would."""

    picked: str
    spread: str
    admin: str

    def wait_for_servers(self, well: int) -> None:
        def told() -> bool:
            with contextlib.suppress(httpx.TransportError):
                text = httpx.get(f"{self.admin}/clusters", timeout=HANG_SECONDS).text
                return sum("::health_flags::healthy" in line for line in _servers(text)) == well
            return False

        wait_until(told, f"{well} servers are well before Envoy")


def _servers(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("servers::")]


@contextlib.contextmanager
def envoy(servers: Sequence[Address], picker: Address, folder: Path) -> Iterator[Envoy]:
    """Ends with the block. The picker's certificate may be anybody's, as of those that make their
    own."""
    program = python_bin(GATEWAY) / "envoy"
    check_installed(program)
    with contextlib.ExitStack() as ports, (folder / "envoy.log").open("w") as log:
        picked, spread, asking, admin = (ports.enter_context(reserved_port()) for _ in range(4))
        document = {
            "admin": {"address": _address("127.0.0.1", admin)},
            "static_resources": {
                "listeners": [
                    _listener("picked", picked, _route("in-order", _NEXT_IN_ORDER)),
                    _listener("asking", asking, _route("servers", _OTHER_SERVER), _ask_picker()),
                    _listener("spread", spread, _route("servers", _OTHER_SERVER)),
                ],
                "clusters": [
                    _in_order_cluster([("127.0.0.1", asking), ("127.0.0.1", spread)]),
                    _server_cluster(servers),
                    _picker_cluster(picker),
                ],
            },
        }
        config = folder / "envoy.yaml"
        config.write_text(yaml.safe_dump(document))
        command = [program, "--config-path", config, "--base-id-path", folder / "base-id"]
        process = subprocess.Popen(
            [*command, "--use-dynamic-base-id", "--concurrency", "1"],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield Envoy(*(f"http://127.0.0.1:{port}" for port in (picked, spread, admin)))
        finally:
            process.kill()
            process.wait()


def _typed(kind: str, **fields: Any) -> dict[str, Any]:
    return {"@type": f"{_TYPES}.{kind}", **fields}


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _route(cluster: str, retries: dict[str, Any]) -> dict[str, Any]:
    return {
        "match": {"prefix": "/"},
        "route": {"cluster": cluster, "timeout": "0s", "retry_policy": retries},
    }


def _listener(name: str, port: int, route: dict[str, Any], *filters: Any) -> dict[str, Any]:
    router = {
        "name": "envoy.filters.http.router",
        "typed_config": _typed("filters.http.router.v3.Router"),
    }
    manager = _typed(
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=name,
        route_config={"virtual_hosts": [{"name": name, "domains": ["*"], "routes": [route]}]},
        http_filters=[*filters, router],
    )
    network = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    return {
        "name": name,
        "address": _address("127.0.0.1", port),
        "filter_chains": [{"filters": [network]}],
    }


def _ask_picker() -> dict[str, Any]:
    processor = _typed(
        "filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "picker"}, "timeout": "30s"},
        message_timeout="30s",
        failure_mode_allow=True,
        processing_mode={
            "request_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_header_mode": "SEND",
            "response_body_mode": "FULL_DUPLEX_STREAMED",
            "response_trailer_mode": "SEND",
        },
    )
    return {"name": "envoy.filters.http.ext_proc", "typed_config": processor}


_OTHER_SERVER = {
    "retry_on": "connect-failure,refused-stream,reset-before-request",
    "num_retries": 3,
}
# A request whose body goes to the picker as it comes is lost with it: Envoy's failure_mode_allow
# cannot take it back, and a retry can.
_NEXT_IN_ORDER = {
    "retry_on": "5xx,reset",
    "num_retries": 1,
    "retry_priority": {
        "name": "envoy.retry_priorities.previous_priorities",
        "typed_config": _typed(
            "retry.priority.previous_priorities.v3.PreviousPrioritiesConfig", update_frequency=1
        ),
    },
}


def _cluster(name: str, endpoints: Sequence[Address], **fields: Any) -> dict[str, Any]:
    found = [{"endpoint": {"address": _address(*each)}} for each in endpoints]
    assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": found}]}
    return {"name": name, "type": "STATIC", "load_assignment": assignment, **fields}


def _in_order_cluster(endpoints: Sequence[Address]) -> dict[str, Any]:
    """The first, and the next where that fails."""
    groups = [
        {"priority": place, "lb_endpoints": [{"endpoint": {"address": _address(*each)}}]}
        for place, each in enumerate(endpoints)
    ]
    assignment = {"cluster_name": "in-order", "endpoints": groups}
    return {"name": "in-order", "type": "STATIC", "load_assignment": assignment}


def _server_cluster(servers: Sequence[Address]) -> dict[str, Any]:
    in_turn = {
        "name": "envoy.load_balancing_policies.round_robin",
        "typed_config": _typed("load_balancing_policies.round_robin.v3.RoundRobin"),
    }
    named = _typed(
        "load_balancing_policies.override_host.v3.OverrideHost",
        override_host_sources=[{"header": _DESTINATION}],
        fallback_policy={"policies": [{"typed_extension_config": in_turn}]},
    )
    policy = {"name": "envoy.load_balancing_policies.override_host", "typed_config": named}
    check = {
        "timeout": "5s",
        "interval": "1s",
        "unhealthy_threshold": 1,
        "healthy_threshold": 1,
        "http_health_check": {"path": "/health"},
    }
    return _cluster(
        "servers",
        servers,
        connect_timeout="5s",
        health_checks=[check],
        load_balancing_policy={"policies": [{"typed_extension_config": policy}]},
        common_lb_config={"healthy_panic_threshold": {"value": 0}},
    )


def _picker_cluster(picker: Address) -> dict[str, Any]:
    options = _typed(
        "upstreams.http.v3.HttpProtocolOptions",
        explicit_http_config={"http2_protocol_options": {}},
    )
    tls = _typed("transport_sockets.tls.v3.UpstreamTlsContext", common_tls_context={})
    return _cluster(
        "picker",
        [picker],
        connect_timeout="5s",
        typed_extension_protocol_options={
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options
        },
        transport_socket={"name": "envoy.transport_sockets.tls", "typed_config": tls},
    )
