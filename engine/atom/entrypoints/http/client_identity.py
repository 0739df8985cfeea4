"""ClientIdentity: a request's client, as one short text that reveals no secret.

The engine divides its time among clients, and compilations too, so a sender must not become many
clients by writing something new into each request. In this order, the client is a header that a
gateway in front sets (only if the operator names it); the key, if the server has several and checks
them; else the peer's address. A key that is not checked is unproven: it only tells clients of one
address apart. Knows nothing of queues; called by the routes that generate.
"""

from __future__ import annotations

from functools import lru_cache

from starlette.types import Scope

from atom.client_label import address_name, client_label, key_label
from atom.entrypoints.http.given_keys import key_of
from atom.entrypoints.http.response_headers import header_of

KEY_NAME = "api_key_name"  # in a scope's state: the name of the checked key, if it has one
CLIENT_LABEL = "client_label"  # likewise: the client of a request that the server itself makes


class ClientIdentity:
    def __init__(self, *, header: str | None = None, num_keys: int = 0) -> None:
        """header: in lower case; None to trust none. num_keys: of the server, of which every
        request here has one; 0 if none is checked."""
        self._header = header
        self._num_keys = num_keys

    def of(self, scope: Scope) -> str:
        """Name the sender in the form of `Request.client_id`: `header-…`, `key-…`, `addr-…` or
        `addr-…/key-…`, with the start of a SHA-256 each. Empty if the sender is unknown. A named
        key appears by its name: `key-NAME`. The server's own requests have the label of their
        scope."""
        known: str | None = scope.get("state", {}).get(CLIENT_LABEL)
        if known is not None:
            return known
        if self._header is not None:
            named = (header_of(scope, self._header) or "").strip()
            if named:
                return client_label("header", named)
        name = scope.get("state", {}).get(KEY_NAME)
        if name:
            return key_label(name)
        if self._num_keys > 1:
            return client_label("key", key_of(scope))
        client = scope.get("client")
        if client is None:
            return ""
        label = _address_label(str(client[0]))
        key = "" if self._num_keys else key_of(scope)
        return f"{label}/{client_label('key', key)}" if key else label


@lru_cache(maxsize=1024)
def _address_label(address: str) -> str:
    """Label the client's address. A client asks many times, so the label is cached; keys are
    not."""
    return client_label("addr", address_name(address))
