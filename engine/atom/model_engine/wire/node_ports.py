"""Ports on which clients listen to cores of other nodes: chosen by the kernel, sent in the order.

The same two sockets as on their own machine, over TCP. ZMQ reconnects silently, and loses the
messages under way: so no time limit of ours ends a connection before the group has ended
(NodeLink's are shorter), and a connection that ends all the same ends its core (CoreSockets). A
process that reaches a port is trusted, as by the store.
"""

from __future__ import annotations

import socket

import zmq

from atom.model_engine.wire.core_sockets import ClientEndpoints
from atom.model_engine.wire.other_nodes import ClientPorts

_ANY_PORT = "tcp://*:*"
_QUIET_SECONDS = 30


def listen_to_nodes(requests: zmq.Socket[bytes], outputs: zmq.Socket[bytes]) -> ClientPorts:
    """Open a client's two sockets on every interface as well."""
    return ClientPorts(_listen(requests), _listen(outputs))


def far_endpoints(host: str, ports: ClientPorts) -> ClientEndpoints:
    """Return where a core of another node finds a client of the node with this address."""
    name = f"[{host}]" if ":" in host else host
    return ClientEndpoints(f"tcp://{name}:{ports.requests}", f"tcp://{name}:{ports.outputs}")


def _listen(own: zmq.Socket[bytes]) -> int:
    own.setsockopt(zmq.IPV6, int(socket.has_dualstack_ipv6()))
    # Else a gateway on the way may forget one that is quiet for long.
    own.setsockopt(zmq.TCP_KEEPALIVE, 1)
    own.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _QUIET_SECONDS)
    own.bind(_ANY_PORT)
    endpoint = own.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return int(endpoint.rstrip(b"\0").rpartition(b":")[2])
