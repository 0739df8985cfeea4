"""Places: the addresses of the replicas behind a URL, and the order to ask them in.

A Service's URL is one place, behind which Kubernetes chooses a replica for each connection. The
URLs of workers are as many places as their names have addresses: each is tracked separately, so
that a request goes to one that serves and has few of this server's requests.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Place:
    """Locate a replica, or one of several. address: of the URL's host; empty for any address of its
    name."""

    url: str
    address: str = ""

    def __str__(self) -> str:
        return f"{self.url} ({self.address})" if self.address else self.url


class Places(Protocol):
    def in_order(self, open_at: Mapping[Place, int]) -> Sequence[Place]:
        """List the places to ask, one after the other; none twice. open_at: how many requests each
        has."""


class OnePlace:
    """A URL, behind which something else chooses."""

    def __init__(self, url: str) -> None:
        self._places = [Place(url.rstrip("/"))]

    def in_order(self, open_at: Mapping[Place, int]) -> Sequence[Place]:
        return self._places


class FoundPlaces:
    """The addresses that the hosts of several URLs have, as last resolved."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = [url.rstrip("/") for url in urls]
        self.found: list[Place] = []
        self._serving: frozenset[Place] = frozenset()

    async def resolve(self) -> str:
        """Resolve all names again. Returns the errors of names without an address."""
        results = await asyncio.gather(*map(_addresses, self._urls), return_exceptions=True)
        found: dict[Place, None] = {}
        troubles = []
        for url, result in zip(self._urls, results, strict=True):
            if isinstance(result, OSError):
                troubles.append(f"{url}: {result.strerror or result}")
            elif isinstance(result, BaseException):
                raise result
            else:
                found.update((Place(url, address), None) for address in result)
        self.found = list(found)
        return "; ".join(troubles)

    def note_serving(self, places: Sequence[Place]) -> None:
        """Note which of them take requests."""
        self._serving = frozenset(places)

    def in_order(self, open_at: Mapping[Place, int]) -> Sequence[Place]:
        """List the serving places first, each part by its number of open requests, fewest first."""
        shuffled = random.sample(self.found, len(self.found))
        return sorted(shuffled, key=lambda place: (place not in self._serving, open_at[place]))


async def _addresses(url: str) -> list[str]:
    parts = urlsplit(url)
    port = parts.port or _PORTS[parts.scheme]
    loop = asyncio.get_running_loop()
    told = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in told]
