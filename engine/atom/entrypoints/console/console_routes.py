"""Routes of the page at / and its files, which are the same for everybody and contain no request or
answer: the page asks the API for those, with the key that its user types.

The page runs only its own files. It contacts no other server than the MCP servers that its reader
adds, of those that the operator of this server allows: the policy in its headers makes browsers
enforce that. Not part of the API's document.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response

from atom.entrypoints.console.mcp_hosts import DEFAULT_HOSTS, connect_sources

FOLDER = Path(__file__).parent / "static"
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'{}; "
    "img-src 'self' data:; "  # pictures that a reader attaches
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # a new version of the server has a new page
}


def console_routes(*, shown: bool = True, mcp_hosts: Sequence[str] = DEFAULT_HOSTS) -> APIRouter:
    """Build the routes; without the page, GET / is as any address that there is not. mcp_hosts:
    that the page may call, as `mcp_host` parses them."""
    router = APIRouter(include_in_schema=False)
    if not shown:

        @router.get("/")  # HEAD / is answered for clients that ask whether a server is here
        async def nothing() -> Response:
            raise HTTPException(404)

        return router
    headers = {**_HEADERS, "content-security-policy": _POLICY.format(connect_sources(mcp_hosts))}
    page = (FOLDER / "index.html").read_bytes()
    files = {
        path.name: (path.read_bytes(), _KINDS[path.suffix])
        for path in FOLDER.iterdir()
        if path.suffix in _KINDS
    }

    @router.get("/")  # HEAD is answered whether there is a page or not
    async def console() -> Response:
        return Response(page, headers=headers, media_type="text/html")

    @router.head("/console/{name}")
    @router.get("/console/{name}")
    async def console_file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        content, kind = files[name]
        return Response(content, headers=headers, media_type=kind)

    return router
