"""The MCP servers that the page at / may call, as sources of its content policy.

The page calls them from the browser of its reader, with addresses that the reader adds. The policy
bounds these addresses, so that a page that went wrong could not send a conversation anywhere.
Values alone; used by the flag and by the page's routes.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

LOOPBACK, NONE, ANY = "loopback", "none", "*"
DEFAULT_HOSTS = (LOOPBACK,)  # servers that the reader runs beside the browser
# A policy can name no address of IPv6.
_SOURCES = {
    LOOPBACK: tuple(
        f"{scheme}://{host}:*"
        for scheme in ("http", "https")
        for host in ("localhost", "127.0.0.1")
    ),
    NONE: (),
    ANY: ("http:", "https:"),
}
_ORIGIN = re.compile(r"(https?://)?(\*\.)?[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*(:([0-9]{1,5}|\*))?")


def mcp_host(text: str) -> str:
    """Parse one value of --page-mcp-hosts: a word, or an origin, of HTTPS without a scheme."""
    if text in _SOURCES:
        return text
    if not _ORIGIN.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is none of {LOOPBACK}, {NONE} and {ANY}, and no origin such as "
            f"https://tools.example.com or http://tools.example.com:8001, without a path"
        )
    return text if "://" in text else f"https://{text}"


def connect_sources(hosts: Sequence[str]) -> str:
    """Return the sources that `connect-src` has beside the server's own origin, each after a
    space."""
    sources = (source for host in hosts for source in _SOURCES.get(host, (host,)))
    return "".join(f" {source}" for source in dict.fromkeys(sources))
