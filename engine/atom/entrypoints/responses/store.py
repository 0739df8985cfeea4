"""Responses that are kept for a while, in this process's memory: for `previous_response_id`, for
items that are named by their ids, and for being read again.

Bounded by bytes: the oldest make room. Nothing survives a restart, and other processes on the port
do not see it, so a server with several has none. A response is shown to the client that asked for
it, where keys or a header tell clients apart. No HTTP.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from atom.entrypoints.http.errors import shortened
from atom.entrypoints.responses.input_items import REFERENCE, kind_of
from atom.entrypoints.responses.store_limit import DEFAULT_BYTES
from atom.errors import RequestError

Items = Sequence[dict[str, Any]]
_decode = msgspec.json.decode
_TOLD_APART = ("key-", "header-")


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that is complete, as JSON. input: its own items. conversation: all items from the
    first request's to this answer's."""

    id: str
    owner: str
    body: bytes
    input: bytes
    conversation: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.body) + len(self.input) + len(self.conversation)

    def input_items(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = _decode(self.input)
        return found

    def items(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = _decode(self.conversation)
        return found


class ResponseStore:
    def __init__(self, limit_bytes: int = DEFAULT_BYTES, off_because: str = "") -> None:
        """off_because: why there is none, with the remedy."""
        self._limit_bytes = limit_bytes
        self._off_because = off_because
        self._found: OrderedDict[str, StoredResponse] = OrderedDict()
        self._size_bytes = 0

    @property
    def is_on(self) -> bool:
        return not self._off_because and self._limit_bytes > 0

    def check_on(self, field: str) -> None:
        """Raises `RequestError` naming the field that needs the store."""
        if not self.is_on:
            why = self._off_because or "--responses-store-mib is 0"
            raise RequestError(
                f"{field} is not supported by this server: no responses are stored, because {why}; "
                f"send the whole conversation as input",
                param=field,
                code="unsupported_parameter",
            )

    def add(self, response: StoredResponse) -> None:
        """Keep it, in place of the oldest where there is no room. One that is larger than all there
        is cannot be kept."""
        self._remove(response.id)
        if response.size_bytes > self._limit_bytes:
            return
        self._found[response.id] = response
        self._size_bytes += response.size_bytes
        while self._size_bytes > self._limit_bytes:
            self._remove(next(iter(self._found)))

    def get(self, response_id: str, owner: str, param: str | None = None) -> StoredResponse:
        """Raises `RequestError` (404) for one that is not there, or another client's."""
        found = self._found.get(response_id)
        if found is None or found.owner != owner:
            raise RequestError(
                f"no response {shortened(response_id)!r} is stored here: it was not asked to be, "
                f"was deleted, made room for later ones (--responses-store-mib), or is another "
                f"replica's",
                param=param,
                status=404,
                code="previous_response_not_found" if param else "response_not_found",
            )
        self._found.move_to_end(response_id)
        return found

    def delete(self, response_id: str, owner: str) -> None:
        self.get(response_id, owner)
        self._remove(response_id)

    def resolved(self, items: Items, owner: str) -> Items:
        """Put stored items in the place of references to them. What is not found stays, to be
        refused with its place."""
        if all(kind_of(item) != REFERENCE for item in items):
            return items
        known = {
            item["id"]: item
            for response in self._found.values()
            if response.owner == owner
            for item in response.items()
            if "id" in item
        }
        return [
            known.get(str(item.get("id")), item) if kind_of(item) == REFERENCE else item
            for item in items
        ]

    def _remove(self, response_id: str) -> None:
        gone = self._found.pop(response_id, None)
        if gone is not None:
            self._size_bytes -= gone.size_bytes


def owner_of(client_id: str) -> str:
    """Name the owner of what a client stores: addresses change, and tell no one."""
    return client_id if client_id.startswith(_TOLD_APART) else ""
