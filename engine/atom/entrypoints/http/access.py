"""Who may call what: the optional API keys, and routes that always need one.

Pure ASGI, so that event streams pass untouched. With a key set, every route needs it but those
that probes, scrapers and the operator read and the pages that a browser opens, which can send no
key; those say nothing of what is asked or answered.
Control routes change the server for every client: without a key set, none may call them.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from atom.entrypoints.http.api_key import API_KEY_VARIABLE, FollowedKeys
from atom.entrypoints.http.client_identity import KEY_NAME
from atom.entrypoints.http.errors import http_error
from atom.entrypoints.http.given_keys import keys_in, remember_key

OPEN_PATHS = frozenset(
    {
        "/health", "/ready", "/ping", "/startup", "/live", "/load", "/metrics", "/version",
        "/server_info",
    }
)  # fmt: skip
# The pages, and what they load: the same for everybody.
PAGE_PATHS = frozenset({"/", "/docs", "/redoc", "/openapi.json"})
_PAGE_FILES = (
    "/console/",
    "/static-offline-docs/",
)
CONTROL_PATHS = frozenset(
    {
        "/reset_prefix_cache", "/start_profile", "/stop_profile", "/sleep", "/wake_up",
        "/update_weights",
    }
)  # fmt: skip


class ApiKeyCheck:
    """Middleware. api_keys: any of them will do; none lets everybody call everything but the
    control routes."""

    def __init__(self, app: ASGIApp, api_keys: FollowedKeys) -> None:
        self._app = app
        self._api_keys = api_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        status, message = refusal
        response = http_error(status, message, "invalid_api_key" if status == 401 else None)
        if status == 401:
            response.headers["www-authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        path = scope["path"]
        if not self._api_keys:
            if path in CONTROL_PATHS:
                return 403, (
                    f"{path} is off in a server without an API key; start it with "
                    f"--api-key-file FILE or the variable {API_KEY_VARIABLE}"
                )
            return None
        if path in OPEN_PATHS or path in PAGE_PATHS or path.startswith(_PAGE_FILES):
            return None
        for text in keys_in(scope):
            name = self._api_keys.name_of(text.encode("latin-1"))  # as headers are on the wire
            if name is not None:
                remember_key(scope, text)
                scope.setdefault("state", {})[KEY_NAME] = name
                return None
        return 401, (
            "this server needs its API key: send the header 'Authorization: Bearer <key>' (or "
            "'x-api-key: <key>') with the right one"
        )
