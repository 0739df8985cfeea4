"""Responses that are stored for a while, in this process's memory: for `previous_response_id`, for
items that are named by their ids, and for being read again.

Bounded by bytes: when the store is full, the owner that holds the most loses its oldest response,
so that no owner evicts another's share. Items are indexed by their ids, so that a reference costs
one look-up whatever is stored. Nothing survives a restart, and other processes on the port do not
see the store, so a server with several processes has none. A response is shown to the client that
asked for it if keys or a header tell clients apart. No HTTP.
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
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_ITEM_BYTES = 512  # the index's size of an item beside its text
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


class _Id(msgspec.Struct):
    id: str | None = None


_decode_id = msgspec.json.Decoder(_Id).decode


class _Share:
    """The responses of one owner, the least recently used first, and an index of their items."""

    def __init__(self) -> None:
        self.found: OrderedDict[str, StoredResponse] = OrderedDict()
        self.size_bytes = 0
        self._sizes: dict[str, int] = {}
        self._names: dict[str, tuple[str, ...]] = {}  # of a response's items
        # By an item's id: its text in each response that has it, the newest response last.
        self._items: dict[str, dict[str, msgspec.Raw]] = {}

    def add(self, response: StoredResponse, items: list[msgspec.Raw]) -> None:
        size = size_bytes_of(response, items)
        self.found[response.id] = response
        self._sizes[response.id] = size
        self.size_bytes += size
        texts = {name: item for item in items if (name := _decode_id(item).id) is not None}
        self._names[response.id] = tuple(texts)
        for name, item in texts.items():
            self._items.setdefault(name, {})[response.id] = item

    def remove(self, response_id: str) -> None:
        del self.found[response_id]
        self.size_bytes -= self._sizes.pop(response_id)
        for name in self._names.pop(response_id):
            del self._items[name][response_id]
            if not self._items[name]:
                del self._items[name]

    def item(self, name: str) -> dict[str, Any] | None:
        """Return the item as the newest response has it; None if no response does."""
        texts = self._items.get(name)
        return _decode(next(reversed(texts.values()))) if texts else None


def size_bytes_of(response: StoredResponse, items: Sequence[msgspec.Raw]) -> int:
    """Return the bytes that a response and the index of its items take."""
    return response.size_bytes + _ITEM_BYTES * len(items)


class ResponseStore:
    def __init__(self, limit_bytes: int = DEFAULT_BYTES, off_because: str = "") -> None:
        """off_because: why there is no store, with the remedy."""
        self._limit_bytes = limit_bytes
        self._off_because = off_because
        self._shares: dict[str, _Share] = {}
        self._owners: dict[str, str] = {}  # by a response's id

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
        """Store the response, evicting the oldest ones of whichever owner holds the most. A
        response that is larger than the store is not stored."""
        self._remove(response.id)
        items = _decode_items(response.conversation)
        if size_bytes_of(response, items) > self._limit_bytes:
            return
        self._shares.setdefault(response.owner, _Share()).add(response, items)
        self._owners[response.id] = response.owner
        while sum(share.size_bytes for share in self._shares.values()) > self._limit_bytes:
            largest = max(self._shares.values(), key=lambda share: share.size_bytes)
            self._remove(next(iter(largest.found)))

    def get(self, response_id: str, owner: str, param: str | None = None) -> StoredResponse:
        """Raises `RequestError` (404) for one that is not there, or another client's."""
        share = self._shares.get(owner)
        found = share.found.get(response_id) if share is not None else None
        if share is None or found is None:
            raise RequestError(
                f"no response {shortened(response_id)!r} is stored here: it was not asked to be, "
                f"was deleted, made room for later ones (--responses-store-mib), or is another "
                f"replica's",
                param=param,
                status=404,
                code="previous_response_not_found" if param else "response_not_found",
            )
        share.found.move_to_end(response_id)
        return found

    def delete(self, response_id: str, owner: str) -> None:
        self.get(response_id, owner)
        self._remove(response_id)

    def resolved(self, items: Items, owner: str) -> Items:
        """Replace references by the items that they name. A reference to an item that is not
        stored stays, to be refused with its place."""
        share = self._shares.get(owner)
        if share is None:
            return items
        return [
            (share.item(str(item.get("id"))) or item) if kind_of(item) == REFERENCE else item
            for item in items
        ]

    def _remove(self, response_id: str) -> None:
        owner = self._owners.pop(response_id, None)
        if owner is None:
            return
        self._shares[owner].remove(response_id)
        if not self._shares[owner].found:
            del self._shares[owner]


def owner_of(client_id: str) -> str:
    """Name the owner of a client's stored responses; "" for an address, which identifies no one."""
    return client_id if client_id.startswith(_TOLD_APART) else ""
