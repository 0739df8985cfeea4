"""BlockLog: what became findable in the prefix cache and what was forgotten, in this order.

Written by BlockManager as it happens, so that an entry costs an append; read out once
a step by the publisher's thread, which makes events of it. Knows hashes and packed tokens, nothing
of messages.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Apart:
    """Says what sets a sequence's blocks apart from those of others with the same tokens: a salt,
    "" for none, and the name of its adapter."""

    salt: str = ""
    lora_name: str | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """Describes blocks that follow each other and are findable now. group: of layers; parent: the
    hash before the first, None at the beginning of a sequence; packed: their tokens as int32; salt:
    what sets a sequence apart from others, at its beginning only; lora_name: of its adapter."""

    group: int
    parent: int | None
    hashes: list[int]
    packed: bytes
    salt: str = ""
    lora_name: str | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """Names blocks that are not findable any more."""

    hashes: list[int]


@dataclass(frozen=True, slots=True)
class Cleared:
    """Says that nothing is findable any more."""


Entry = Stored | Removed | Cleared


class BlockLog:
    """The entries since they were last taken. Of one thread."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def append(self, entry: Entry) -> None:
        self._entries.append(entry)

    def take(self) -> list[Entry]:
        """Return the entries, and begin anew."""
        entries, self._entries = self._entries, []
        return entries
