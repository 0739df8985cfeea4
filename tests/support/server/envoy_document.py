"""Builds the parts of Envoy's configuration by which gateways ask an endpoint picker: listeners,
clusters, and what is tried again where. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Address = tuple[str, int]
DESTINATION = "x-gateway-destination-endpoint"
_TYPES = "type.googleapis.com/envoy.extensions"


def typed(kind: str, **fields: Any) -> dict[str, Any]:
    return {"@type": f"{_TYPES}.{kind}", **fields}


def address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def route(to: str, retries: dict[str, Any] | None = None) -> dict[str, Any]:
    tried_again = {"retry_policy": retries} if retries is not None else {}
    return {"match": {"prefix": "/"}, "route": {"cluster": to, "timeout": "0s", **tried_again}}


def listener(name: str, at: Address, route: dict[str, Any], *filters: Any) -> dict[str, Any]:
    router = {
        "name": "envoy.filters.http.router",
        "typed_config": typed("filters.http.router.v3.Router"),
    }
    manager = typed(
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=name,
        route_config={"virtual_hosts": [{"name": name, "domains": ["*"], "routes": [route]}]},
        http_filters=[*filters, router],
    )
    network = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    return {
        "name": name,
        "address": address(*at),
        "filter_chains": [{"filters": [network]}],
    }


def ask_picker() -> dict[str, Any]:
    processor = typed(
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


OTHER_SERVER = {
    "retry_on": "connect-failure,refused-stream,reset-before-request",
    "num_retries": 3,
}
# A request whose body goes to the picker as it comes is lost with it: Envoy's failure_mode_allow
# cannot take it back, and a retry can.
NEXT_IN_ORDER = {
    "retry_on": "5xx,reset",
    "num_retries": 1,
    "retry_priority": {
        "name": "envoy.retry_priorities.previous_priorities",
        "typed_config": typed(
            "retry.priority.previous_priorities.v3.PreviousPrioritiesConfig", update_frequency=1
        ),
    },
}


def cluster(name: str, endpoints: Sequence[Address], **fields: Any) -> dict[str, Any]:
    found = [{"endpoint": {"address": address(*each)}} for each in endpoints]
    assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": found}]}
    return {"name": name, "type": "STATIC", "load_assignment": assignment, **fields}


def in_order_cluster(endpoints: Sequence[Address]) -> dict[str, Any]:
    """The first, and the next where that fails."""
    groups = [
        {"priority": place, "lb_endpoints": [{"endpoint": {"address": address(*each)}}]}
        for place, each in enumerate(endpoints)
    ]
    assignment = {"cluster_name": "in-order", "endpoints": groups}
    return {"name": "in-order", "type": "STATIC", "load_assignment": assignment}


def protocol(**fields: Any) -> dict[str, Any]:
    """How a cluster is spoken to, as a field of the cluster."""
    name = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    options = typed("upstreams.http.v3.HttpProtocolOptions", **fields)
    return {"typed_extension_protocol_options": {name: options}}


def picker_cluster(picker: Address) -> dict[str, Any]:
    """Its certificate may be anybody's, as of those that make their own."""
    tls = typed("transport_sockets.tls.v3.UpstreamTlsContext", common_tls_context={})
    return cluster(
        "picker",
        [picker],
        connect_timeout="5s",
        transport_socket={"name": "envoy.transport_sockets.tls", "typed_config": tls},
        **protocol(explicit_http_config={"http2_protocol_options": {}}),
    )
