"""CacheSalts: the clients whose prompts may reuse each other's cached blocks.

Response times and `cached_tokens` reveal that a prompt is cached, and so what others have asked. So
if a server has several keys, the prompts of a client that a key, or a gateway's header, names share
cached blocks with that client's own alone. Pure; owned by AsyncLLMEngine.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from atom.client_label import ANONYMOUS_KIND, owner_in

_SALT_DIGITS = 32


def _no() -> bool:
    return False


class CacheSalts:
    def __init__(self, apart: Callable[[], bool] = _no) -> None:
        """apart: whether clients are kept apart now."""
        self._apart = apart

    def of(self, client_id: str, asked: str) -> str:
        """Return a prompt's salt. client_id: as in `Request`; asked: the request's own cache_salt,
        which separates prompts of one client."""
        client = owner_in(client_id)
        if not self._apart() or client.partition("-")[0] in ("", ANONYMOUS_KIND):
            return asked
        # A digest of both: no text that a client sends makes another client's salt.
        return sha256(f"{client}\0{asked}".encode()).hexdigest()[:_SALT_DIGITS]
