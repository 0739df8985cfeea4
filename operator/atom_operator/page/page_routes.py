"""Routes of the operator's page, beside its metrics: static files, and one JSON document that they
ask for. Reading is all that can be done here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from atom_operator.cluster.errors import ClusterError

FOLDER = Path(__file__).parent / "static"
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def add_page(
    application: web.Application, document: Callable[[], Awaitable[dict[str, Any]]]
) -> None:
    """Add the page at / to the served application."""

    async def overview(_: web.Request) -> web.Response:
        try:
            return web.json_response(await document(), headers=_HEADERS)
        except ClusterError as error:
            return web.json_response({"error": str(error)}, status=503, headers=_HEADERS)

    application.router.add_get("/overview.json", overview)
    for path in sorted(FOLDER.iterdir()):
        address = "/" if path.name == "index.html" else f"/page/{path.name}"
        application.router.add_get(address, _file(path))


def _file(path: Path) -> Callable[[web.Request], Awaitable[web.Response]]:
    content = path.read_bytes()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(
            body=content, content_type=_KINDS[path.suffix], charset="utf-8", headers=_HEADERS
        )

    return answer
