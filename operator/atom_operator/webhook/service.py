"""WebhookService: the webhook's parts, wired from the settings. Run by the runtime.

Owns the reviewer, the server and the connections of the certificate source; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from atom_operator.cluster.port import ClusterPort
from atom_operator.endpoints import EVERY_ADDRESS
from atom_operator.reconcile.decider import Decider
from atom_operator.settings import WebhookSettings
from atom_operator.webhook.certificate_keeper import (
    CertificateSource,
    MountedCertificates,
    OwnCertificates,
)
from atom_operator.webhook.objects import ApiTrust
from atom_operator.webhook.reviewer import Reviewer
from atom_operator.webhook.server import WebhookServer


class WebhookService:
    """The admission webhook of a process; `count` gets the result of every review."""

    def __init__(
        self,
        settings: WebhookSettings,
        port: ClusterPort,
        decider: Decider,
        *,
        count: Callable[[str], None],
        clock: Callable[[], datetime],
    ) -> None:
        self._reviewer = Reviewer(port, decider)
        self._trust: ApiTrust | None = None
        self._server = WebhookServer(
            self._reviewer.review,
            self._source(settings, clock),
            host=EVERY_ADDRESS,
            port=settings.port,
            observe=count,
        )

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            await self._server.run()
        finally:
            await self._reviewer.close()
            if self._trust is not None:
                await self._trust.close()

    def _source(
        self, settings: WebhookSettings, clock: Callable[[], datetime]
    ) -> CertificateSource:
        if settings.certificate_folder:
            return MountedCertificates(Path(settings.certificate_folder))
        self._trust = ApiTrust.connect(settings.namespace, settings.secret, settings.configuration)
        return OwnCertificates(self._trust, settings.hosts, clock)
