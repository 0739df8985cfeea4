"""Where clients listen to cores of other nodes: on ports of the kernel's choice, told in the order.

The same two sockets as on their own machine, over TCP. A connection of ZMQ's is repaired in silence
and may lose messages, so these outlive what NodeLink takes for the end of a machine: before one of
them is given up the group has ended. A process that reaches a port is believed, as by the store.
"""

from __future__ import annotations

import socket

import zmq

from atom.model_engine.wire.core_sockets import ClientEndpoints
from atom.model_engine.wire.other_nodes import ClientPorts

_ANY_PORT = "tcp://*:*"


def listen_to_nodes(requests: zmq.Socket[bytes], outputs: zmq.Socket[bytes]) -> ClientPorts:
    """Have a client's two sockets listen on every interface as well."""
    return ClientPorts(_listen(requests), _listen(outputs))


def far_endpoints(host: str, ports: ClientPorts) -> ClientEndpoints:
    """Where a core of another node finds a client of the node with this address."""
    name = f"[{host}]" if ":" in host else host
    return ClientEndpoints(f"tcp://{name}:{ports.requests}", f"tcp://{name}:{ports.outputs}")


def _listen(own: zmq.Socket[bytes]) -> int:
    own.setsockopt(zmq.IPV6, int(socket.has_dualstack_ipv6()))
    own.setsockopt(zmq.TCP_KEEPALIVE, 1)  # else a gateway may forget one that is quiet for long
    own.bind(_ANY_PORT)
    endpoint = own.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return int(endpoint.rstrip(b"\0").rpartition(b":")[2])
