"""Requests and tokens of each client of a server, for a bounded number of clients.

There may be any number of clients, and so of metrics' series. The clients with the most requests
and tokens have their own figures. The others share one sum, to which a client's figures are added
when another client takes its place. Written by one thread, as requests arrive and end; the server's
/metrics reads the figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

MOST_CLIENTS = 20
OTHER = "other"
UNKNOWN = "unknown"  # a request with an empty client id


class ClientCounts(msgspec.Struct):
    """Counts of one client's requests. waiting, running: open requests without and with a token.
    requests: all that arrived. Tokens and queue_seconds (from arrival to the step that began with
    the prompt) count ended requests."""

    waiting: int = 0
    running: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    queue_seconds: float = 0.0

    @property
    def weight(self) -> int:
        return self.requests + self.prompt_tokens + self.generation_tokens

    def add(self, part: ClientCounts) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(part, name))


class ClientFigures:
    def __init__(self, most: int = MOST_CLIENTS) -> None:
        self._most = most
        self._counts: dict[str, ClientCounts] = {}
        self._other = ClientCounts()

    def came(self, client: str) -> None:
        """Count one more request of the client."""
        counts = self._counts.get(client)
        if counts is None:
            if len(self._counts) >= self._most:
                least = min(self._counts, key=lambda name: self._counts[name].weight)
                self._other.add(self._counts.pop(least))
            counts = self._counts[client] = ClientCounts()
        counts.requests += 1

    def began(self, client: str, queue_seconds: float) -> None:
        """Count the seconds that a request, which has ended, waited for its first step."""
        self._of(client).queue_seconds += queue_seconds

    def ended(self, client: str, prompt_tokens: int, generation_tokens: int) -> None:
        counts = self._of(client)
        counts.prompt_tokens += prompt_tokens
        counts.generation_tokens += generation_tokens

    def _of(self, client: str) -> ClientCounts:
        return self._counts.get(client, self._other)

    def told(self, open_requests: Iterable[tuple[str, bool]]) -> dict[str, ClientCounts]:
        """Count requests and tokens by client label, the open ones included. open_requests: the
        client of each, and whether it has a token."""
        found = {name or UNKNOWN: msgspec.structs.replace(counts) for name, counts in
                 self._counts.items()}  # fmt: skip
        found[OTHER] = msgspec.structs.replace(self._other)
        for client, has_token in open_requests:
            counts = found.get(client or UNKNOWN, found[OTHER])
            counts.running += has_token
            counts.waiting += not has_token
        return found


def merge_clients(parts: Iterable[Mapping[str, ClientCounts]]) -> dict[str, ClientCounts]:
    """Return the sum of several processes' counts."""
    merged: dict[str, ClientCounts] = {}
    for part in parts:
        for name, counts in part.items():
            merged.setdefault(name, ClientCounts()).add(counts)
    return merged
