"""Sessions with replicas: each is opened for one exchange, to an address that was chosen before.

Both ways to replicas use it: a server that hands its open answers over, and a server whose every
answer is computed by workers.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from atom.entrypoints.handover.places import Place
from atom.entrypoints.handover.token_frames import BEAT_SECONDS, PROTOCOL, PROTOCOL_HEADER
from atom.entrypoints.http.access import SECRET_HEADER

# By which an exchange fails. One that does before it is answered has not begun: a replica answers
# before it computes.
EXCHANGE_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)
_CONNECT_SECONDS = 2.0
_SILENT_SECONDS = 4 * BEAT_SECONDS


class ReplicaSessions:
    """Open sessions with this server's secret and certificate."""

    def __init__(
        self, secrets: Callable[[], Sequence[bytes]], certificate: str | None = None
    ) -> None:
        """secrets: the valid ones here, of which the first must be valid there as well.
        certificate: a PEM file that replicas of an https URL show; this server's own."""
        self._secrets = secrets
        self._ssl: ssl.SSLContext | bool = True
        if certificate is not None:
            self._ssl = ssl.create_default_context(cafile=certificate)
            self._ssl.check_hostname = False  # the same file is shown under every name
            self._ssl.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN

    def to(self, place: Place, total_seconds: float | None = None) -> aiohttp.ClientSession:
        resolver = _Pinned(place.address) if place.address else None
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, ssl=self._ssl, resolver=resolver),
            timeout=aiohttp.ClientTimeout(
                total=total_seconds, sock_connect=_CONNECT_SECONDS, sock_read=_SILENT_SECONDS
            ),
        )

    def headers(self, number: int) -> dict[str, str]:
        """Headers of the next try. The secret may be changing: another one may be the one."""
        secrets, headers = self._secrets(), {PROTOCOL_HEADER: str(PROTOCOL)}
        if secrets:
            headers[SECRET_HEADER] = secrets[number % len(secrets)].decode("latin-1")
        return headers


class _Pinned(AbstractResolver):
    """Resolve every name to one address."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        own = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        return [
            ResolveResult(
                hostname=host, host=self._address, port=port, family=own, proto=0,
                flags=socket.AI_NUMERICHOST,
            )
        ]  # fmt: skip

    async def close(self) -> None:
        """Do nothing, since nothing is open."""
