"""Routes of the page at / and its files, which are the same for everybody and contain no request or
answer: the page asks the API for those, with the key that its user types.

The page runs only its own files and contacts no other server: the policy in its headers makes
browsers enforce that. Not part of the API's document.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # a new version of the server has a new page
}


def console_routes(*, shown: bool = True) -> APIRouter:
    """Build the routes; without the page, GET / is as any address that there is not."""
    router = APIRouter(include_in_schema=False)
    if not shown:

        @router.get("/")  # HEAD / is answered for clients that ask whether a server is here
        async def nothing() -> Response:
            raise HTTPException(404)

        return router
    page = (FOLDER / "index.html").read_bytes()
    files = {
        path.name: (path.read_bytes(), _KINDS[path.suffix])
        for path in FOLDER.iterdir()
        if path.suffix in _KINDS
    }

    @router.get("/")  # HEAD is answered whether there is a page or not
    async def console() -> Response:
        return Response(page, headers=_HEADERS, media_type="text/html")

    @router.head("/console/{name}")
    @router.get("/console/{name}")
    async def console_file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        content, kind = files[name]
        return Response(content, headers=_HEADERS, media_type=kind)

    return router
