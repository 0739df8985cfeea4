"""ClientIdentity: whose a request is, as one short text that tells no secret.

The engine shares its time out among clients, and compilations too, so a sender must not become
many clients by writing something new into each request. What counts, first to last: a header that
a gateway in front sets (only if the operator names it); else the peer's address. A key that this
server does not check is anybody's word: it tells clients of one address apart, and no more. Knows
nothing of queues; called by the routes that generate.
"""

from __future__ import annotations

from starlette.types import Scope

from atom.client_label import address_name, client_label
from atom.entrypoints.http.response_headers import header_of


class ClientIdentity:
    def __init__(self, *, header: str | None = None, checks_key: bool = False) -> None:
        """header: in lower case; None to believe none. checks_key: requests come here only with the
        server's own key, which is the same for all clients."""
        self._header = header
        self._checks_key = checks_key

    def of(self, scope: Scope) -> str:
        """As `Request.client_id` has it: `header-…`, `addr-…` or `addr-…/key-…`, with the start of
        a SHA-256 each. Empty where nothing is known of the sender."""
        if self._header is not None:
            named = (header_of(scope, self._header) or "").strip()
            if named:
                return client_label("header", named)
        address = _address(scope)
        if address is None:
            return ""
        label = client_label("addr", address)
        key = "" if self._checks_key else _bearer(scope)
        return f"{label}/{client_label('key', key)}" if key else label


def _address(scope: Scope) -> str | None:
    client = scope.get("client")
    return None if client is None else address_name(str(client[0]))


def _bearer(scope: Scope) -> str:
    scheme, _, key = (header_of(scope, "authorization") or "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
