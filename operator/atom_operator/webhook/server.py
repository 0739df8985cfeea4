"""WebhookServer: HTTPS in front of the reviewer, with a certificate that changes while it runs.

Listens as soon as there is a first certificate. Answers every review, with `allowed` when anything
of ours goes wrong: the object's own rules are the API server's business (CEL) and the status's.
Started by the runtime in every replica; knows nothing of leadership.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

from atom_operator.endpoints import listen
from atom_operator.webhook.admission_review import (
    ReviewError,
    ReviewRequest,
    Verdict,
    answer,
    parse_review,
)
from atom_operator.webhook.certificate_keeper import CertificateSource, keep, load_into
from atom_operator.webhook.certificates import KeyPair
from atom_operator.webhook.review_body import BodyRefusedError, ReviewBodies

_logger = logging.getLogger(__name__)
PATH = "/validate"
_AT_ONCE = 16
_CLOSE_SECONDS = 2.0

Review = Callable[[ReviewRequest], Awaitable[Verdict]]


class WebhookServer:
    """Serves reviews over HTTPS; `observe` gets "allowed", "refused", "failed" or "invalid" once
    per review."""

    def __init__(
        self,
        review: Review,
        source: CertificateSource,
        *,
        host: str,
        port: int,
        observe: Callable[[str], None],
        bodies: ReviewBodies | None = None,
    ) -> None:
        self._review = review
        self._source = source
        self._address = (host, port)
        self._observe = observe
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._bodies = bodies or ReviewBodies()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._certified = asyncio.Event()
        self.port: int | None = None  # once it listens

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keep(self._source, self.load))
            tasks.create_task(self._serve())

    async def _serve(self) -> None:
        await self._certified.wait()
        runner = await self._listen()
        try:
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    def load(self, pair: KeyPair) -> None:
        """Serve this certificate to every connection from now on."""
        load_into(self._context, pair)
        self._certified.set()

    async def _listen(self) -> web.AppRunner:
        application = web.Application()
        application.router.add_post(PATH, self._answer)
        application.router.add_get("/readyz", self._ready)
        runner = web.AppRunner(
            application, access_log=None, shutdown_timeout=_CLOSE_SECONDS, handle_signals=False
        )
        await runner.setup()
        site = web.SockSite(runner, listen(*self._address), ssl_context=self._context)
        await site.start()
        self.port = runner.addresses[0][1]
        _logger.info("serves admission reviews on port %d", self.port)
        return runner

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _answer(self, http: web.Request) -> web.Response:
        try:
            async with self._bodies.parsed(http.content.iter_any()) as body:
                request = parse_review(body)
                async with self._slots:
                    verdict = await self._judge(request)
        except BodyRefusedError as error:
            self._observe("invalid")
            # What is left of the body is not waited for.
            return web.Response(
                status=error.status, text=str(error), headers={"Connection": "close"}
            )
        except ReviewError as error:
            self._observe("invalid")
            return web.Response(status=400, text=str(error))
        return web.json_response(answer(request.uid, verdict))

    async def _judge(self, request: ReviewRequest) -> Verdict:
        try:
            verdict = await self._review(request)
        except Exception:
            _logger.exception("review of %s/%s failed; it is allowed", *request.key)
            self._observe("failed")
            return Verdict(("the operator could not check this object; its log says why",))
        self._observe("refused" if verdict.refusal else "allowed")
        return verdict
