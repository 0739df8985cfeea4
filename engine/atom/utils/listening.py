"""Addresses for listening: where this machine waits for its group, and whether an address is
local."""

from __future__ import annotations

import ipaddress
import socket


def listen_everywhere(port: int) -> socket.socket:
    """Listen on every interface, by IPv6 and IPv4 if both exist; 0 picks a port. Raises
    `OSError`."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def is_loopback(host: str) -> bool:
    """Return whether `host` resolves only to the machine itself; False if it does not resolve
    yet."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(item[4][0]).is_loopback for item in found)
