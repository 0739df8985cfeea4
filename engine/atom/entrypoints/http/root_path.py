"""RootPath: the prefix under which a proxy shows this server, whether it takes it off or not.

Pure ASGI, outermost: everything inside sees its own paths.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPath:
    """Middleware. prefix: such as /models/small; starts with a slash and ends with none."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(f"{self._prefix}/"):
            rest = scope["path"][len(self._prefix) :]
            scope = {**scope, "path": rest, "raw_path": rest.encode()}
        await self._app(scope, receive, send)
