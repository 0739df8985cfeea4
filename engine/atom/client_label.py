"""The names of clients in requests, in weights and in metrics.

A client's identity (a key, a gateway's header, an address) becomes the start of its SHA-256. So no
secret is revealed, and every process of a server, and every server, uses the same name.
"""

from __future__ import annotations

import ipaddress
from hashlib import sha256

KINDS = ("addr", "header", "key")
ANONYMOUS_KIND = "addr"  # of an unauthenticated client
BATCH_GROUP = "batch"  # of the requests of stored batches, before the slash of their label
_DIGITS = 12  # of a hash: 48 bits, so that two of a million clients hardly ever share one
_IPV6_SITE_BITS = 64  # one subscriber has all addresses of such a network


def client_label(kind: str, name: str) -> str:
    """Make a client's label of its kind (one of `KINDS`) and a digest of its name."""
    return f"{kind}-{sha256(name.encode()).hexdigest()[:_DIGITS]}"


def key_label(name: str) -> str:
    """Make the label of a key by the name that its file gives it."""
    return f"key-{name}"


def batch_label(owner: str) -> str:
    """Make the label of the requests of an owner's batches, which are all of one group. owner: the
    label of a key or of a header; empty without one."""
    return f"{BATCH_GROUP}/{owner}"


def owner_in(label: str) -> str:
    """Return the client on whose behalf a request is computed: of a batch, its owner."""
    return label.removeprefix(f"{BATCH_GROUP}/")


def address_name(text: str) -> str:
    """Return the address that identifies a sender: an IPv6 address' network, since one sender has
    very many; any other text unchanged."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_SITE_BITS), strict=False))
