"""Access control: users, administrators and other servers of the model, each by separate keys.

Pure ASGI, so that event streams pass untouched. Four kinds of routes (`needs_of`):

- open ones, which probes, scrapers and the operator read and which browsers load: no key at all;
- those of users: a key, if the server has any;
- those of administrators, which change the server for everybody: an administrator's key. Without
  such a key, the one key of a server with a single key; with several keys, which are tenants', and
  without a key, no caller may use them. Adapters may be loaded and unloaded without a key if the
  server was started for it (--allow-runtime-lora-updating);
- those of peers, which hand open answers over: the secret that all replicas share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from starlette.types import ASGIApp, Receive, Scope, Send

from atom.entrypoints.http.api_key import (
    ADMIN_FILE_FLAG,
    ADMIN_KEY_VARIABLE,
    API_KEY_VARIABLE,
    KEY_FILE_FLAG,
    SECRET_FILE_FLAG,
    FollowedKeys,
)
from atom.entrypoints.http.client_identity import KEY_NAME
from atom.entrypoints.http.errors import http_error
from atom.entrypoints.http.given_keys import keys_in, remember_key
from atom.entrypoints.http.response_headers import header_of

OPEN_PATHS = frozenset(
    {
        "/health", "/ready", "/ping", "/startup", "/live", "/load", "/metrics", "/version",
        "/server_info",
        "/kv_transfer_info",
    }
)  # fmt: skip
# The pages and their files: the same for everybody.
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
# Shut by themselves unless --allow-runtime-lora-updating is given.
ADAPTER_PATHS = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
PEER_PATHS = frozenset({"/continue_request"})
SECRET_HEADER = "x-atom-handover-secret"

_SEND_KEY = (
    "send the header 'Authorization: Bearer <key>' (or 'x-api-key: <key>') with the right one"
)


class Needs(Enum):
    """Name the key that a route needs."""

    NOTHING = auto()
    USER = auto()
    ADMIN = auto()
    PEER = auto()


def needs_of(path: str) -> Needs:
    """Return the key that a path needs; a path without a route needs a user's key."""
    if path in OPEN_PATHS or path in PAGE_PATHS or path.startswith(_PAGE_FILES):
        return Needs.NOTHING
    if path in CONTROL_PATHS or path in ADAPTER_PATHS:
        return Needs.ADMIN
    return Needs.PEER if path in PEER_PATHS else Needs.USER


def _no_keys() -> FollowedKeys:
    return FollowedKeys(())


@dataclass(frozen=True, slots=True)
class AccessKeys:
    """Hold the valid keys, by role. peers: the secrets of replicas."""

    users: FollowedKeys = field(default_factory=_no_keys)
    admins: FollowedKeys = field(default_factory=_no_keys)
    peers: FollowedKeys = field(default_factory=_no_keys)

    @property
    def any_key(self) -> bool:
        """Return whether some routes need a key."""
        return bool(self.users or self.admins)


Refusal = tuple[int, str]


class ApiKeyCheck:
    """Middleware. Refuses requests whose keys do not open their route: 401 without the right key,
    403 where a right key is not enough."""

    def __init__(self, app: ASGIApp, keys: AccessKeys) -> None:
        self._app = app
        self._keys = keys

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

    def _refusal(self, scope: Scope) -> Refusal | None:
        path = scope["path"]
        needs = needs_of(path)
        if needs is Needs.NOTHING:
            return None
        if needs is Needs.PEER and self._keys.peers:
            return self._unless_peer(scope)
        if needs is Needs.ADMIN:
            return self._unless_admin(scope, path)
        if not self._keys.users or self._opens(scope, self._keys.users):
            return None
        if self._opens(scope, self._keys.admins):
            return None
        return 401, f"this server needs its API key: {_SEND_KEY}"

    def _unless_peer(self, scope: Scope) -> Refusal | None:
        given = (header_of(scope, SECRET_HEADER) or "").strip().encode("latin-1")
        if self._keys.peers.name_of(given) is not None:
            return None
        return 403, (
            f"only replicas hand answers over: give them the secret of this server's "
            f"{SECRET_FILE_FLAG}"
        )

    def _unless_admin(self, scope: Scope, path: str) -> Refusal | None:
        users, admins = self._keys.users, self._keys.admins
        remedy = f"{ADMIN_FILE_FLAG} FILE or the variable {ADMIN_KEY_VARIABLE}"
        if admins:
            if self._opens(scope, admins):
                return None
            if self._opens(scope, users):
                return 403, f"{path} needs an administrator's key, and this one is a user's"
            return 401, f"{path} needs an administrator's key: {_SEND_KEY}"
        if users:
            if not self._opens(scope, users):
                return 401, f"this server needs its API key: {_SEND_KEY}"
            if users.count == 1:
                return None
            return 403, (
                f"{path} changes the server for every key, and none of them is an administrator's; "
                f"start the server with {remedy}"
            )
        if path in ADAPTER_PATHS:
            return None
        return 403, (
            f"{path} is off in a server without an API key; start it with {remedy}, or with one "
            f"key for everything ({KEY_FILE_FLAG} FILE or the variable {API_KEY_VARIABLE})"
        )

    def _opens(self, scope: Scope, keys: FollowedKeys) -> bool:
        """Return whether the request brings one of these keys, and note which."""
        for text in keys_in(scope):
            name = keys.name_of(text.encode("latin-1"))  # as headers are on the wire
            if name is not None:
                remember_key(scope, text)
                scope.setdefault("state", {})[KEY_NAME] = name
                return True
        return False
