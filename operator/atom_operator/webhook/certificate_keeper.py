"""Where the serving certificate comes from, and keeping it fresh while the server runs.

Two sources: `OwnCertificates` makes, renews and publishes the project's own; `MountedCertificates`
reads files that cert-manager (or anybody) renews. `keep` loads whatever is newest into the running
server's TLS context: connections under way go on, new ones get the new certificate.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Protocol

from atom_operator.cluster.errors import ClusterError, TransientError
from atom_operator.webhook.certificates import (
    CertificateSet,
    KeyPair,
    kept_fresh,
    make_set,
    matches,
)
from atom_operator.webhook.objects import StoredSet, TrustPort

_logger = logging.getLogger(__name__)
CHECK_SECONDS = 60.0
_RETRY_SECONDS = 5.0


class CertificateError(Exception):
    """Report that there is no usable certificate (yet); the message names its expected place."""


class CertificateSource(Protocol):
    """Provide certificates. Raises CertificateError or ClusterError if there is none at the
    moment."""

    async def current(self) -> KeyPair:
        """Return the certificate to serve now."""


class OwnCertificates:
    """Keep certificates in a Secret that the replicas share, and register the CA with the API
    servers."""

    def __init__(
        self, port: TrustPort, hosts: tuple[str, ...], clock: Callable[[], datetime]
    ) -> None:
        self._port = port
        self._hosts = hosts
        self._clock = clock

    async def current(self) -> KeyPair:
        stored = await self._port.read_set()
        wanted = self._wanted(stored)
        if stored is None or wanted is not stored.content:
            await self._port.write_set(wanted, stored)
            _logger.info("wrote the webhook's certificates, valid until %s", wanted.expires)
        if await self._port.trust(wanted.trusted):
            _logger.info("told the API servers which authority signs the webhook's certificate")
        return wanted.serving

    def _wanted(self, stored: StoredSet | None) -> CertificateSet:
        now = self._clock()
        if stored is None or stored.content is None:
            return make_set(self._hosts, now)
        try:
            return kept_fresh(stored.content, self._hosts, now)
        except ValueError as error:
            _logger.warning("the stored certificates cannot be read (%s): made anew", error)
            return make_set(self._hosts, now)


class MountedCertificates:
    """Reads `tls.crt` and `tls.key` in a folder, as a Secret of type kubernetes.io/tls is
    mounted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def current(self) -> KeyPair:
        return await asyncio.to_thread(self._read)

    def _read(self) -> KeyPair:
        try:
            pair = KeyPair(
                (self._folder / "tls.crt").read_bytes(), (self._folder / "tls.key").read_bytes()
            )
            usable = matches(pair)
        except (OSError, ValueError) as error:
            raise CertificateError(f"{self._folder}: {error}; is the Secret mounted?") from error
        if not usable:  # read between the two files' replacement
            raise CertificateError(f"{self._folder}: tls.key does not belong to tls.crt")
        return pair


async def keep(
    source: CertificateSource,
    loaded: Callable[[KeyPair], None],
    *,
    check_seconds: float = CHECK_SECONDS,
) -> None:
    """Call `loaded` with every new certificate, the first one included, until cancelled."""
    serving: KeyPair | None = None
    while True:
        pause = check_seconds
        try:
            newest = await source.current()
            if newest != serving:
                loaded(newest)
                serving = newest
        except TransientError as error:
            # Often another replica that wrote the same thing at the same time.
            _logger.info("the webhook's certificate: %s", error)
            pause = min(_RETRY_SECONDS, check_seconds)
        except (CertificateError, ClusterError) as error:
            _logger.warning("the webhook's certificate: %s", error)
            pause = min(_RETRY_SECONDS, check_seconds)
        await asyncio.sleep(pause)


def load_into(context: ssl.SSLContext, pair: KeyPair) -> None:
    """Load a certificate into `context`, which takes them from files only; these are gone when this
    returns."""
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        certificate.write_bytes(pair.certificate)
        key.touch(mode=0o600)
        key.write_bytes(pair.key)
        context.load_cert_chain(certificate, key)
