"""The process's listening endpoints: sockets of every address, and plain HTTP for probes and
scrapes.

Knows neither health nor metrics. Used by the runtime and the webhook's server.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

EVERY_ADDRESS = "::"  # of IPv4 too
_BACKLOG = 128
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


def listen(host: str, port: int) -> socket.socket:
    """Bind a socket. `EVERY_ADDRESS` covers both families, whichever of them the kernel has: a
    cluster may have pods without IPv4, and a node no IPv6."""
    if host != EVERY_ADDRESS:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    try:
        return socket.create_server(
            (host, port),
            family=socket.AF_INET6,
            backlog=_BACKLOG,
            dualstack_ipv6=socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        if error.errno not in _NO_IPV6:
            raise
    return socket.create_server(("0.0.0.0", port), backlog=_BACKLOG)


def health(check: Callable[[], object]) -> web.Application:
    """Serve /healthz: 200 as long as `check` does not raise."""

    async def answer(_: web.Request) -> web.Response:
        try:
            return web.json_response({"queue": check()})
        except Exception as error:
            return web.Response(status=500, text=str(error))

    application = web.Application()
    application.router.add_get("/healthz", answer)
    return application


def metrics(registry: CollectorRegistry) -> web.Application:
    """Serve /metrics in the format that the scraper asks for."""

    async def answer(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    application = web.Application()
    application.router.add_get("/metrics", answer)
    return application


async def serve(application: web.Application, port: int) -> web.AppRunner:
    """Serve on every address until the runner is cleaned up; raises OSError."""
    runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    await web.SockSite(runner, listen(EVERY_ADDRESS, port)).start()
    return runner
