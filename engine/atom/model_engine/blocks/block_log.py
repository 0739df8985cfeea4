"""BlockLog: the blocks that became findable in the prefix cache or were forgotten, in this order.

BlockManager appends an entry per event; the publisher's thread reads the log once a step and turns
its entries into events. Knows hashes and packed tokens, no messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Medium(StrEnum):
    """Names the places of cached blocks, by vLLM's words. GPU: where the engine computes, whatever
    that is; CPU: in the host's memory; STORAGE: in files of a disk."""

    GPU = "GPU"
    CPU = "CPU"
    STORAGE = "STORAGE"


@dataclass(frozen=True, slots=True)
class Apart:
    """Separate a sequence's blocks from others with the same tokens: by a cache salt, "" for none,
    and the name of its adapter."""

    salt: str = ""
    lora_name: str | None = None


# Of each image in a block: its digest, and where it begins, counted from the block's first token.
ImageKeys = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """Describe consecutive blocks that are findable now. group: of layers; parent: the hash before
    the first, None at the beginning of a sequence; packed: their tokens as int32; salt: separates
    sequences of equal tokens, at their beginning only; lora_name: of its adapter; medium: where the
    blocks are; images: of each block those in it, None for a block of text; empty if all are."""

    group: int
    parent: int | None
    hashes: list[int]
    packed: bytes
    salt: str = ""
    lora_name: str | None = None
    medium: Medium = Medium.GPU
    images: tuple[ImageKeys | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Removed:
    """Names blocks that are not findable there any more."""

    hashes: list[int]
    medium: Medium = Medium.GPU


@dataclass(frozen=True, slots=True)
class Cleared:
    """Report that no block is findable any more."""


Entry = Stored | Removed | Cleared


class BlockLog:
    """The entries since they were last taken. Of one thread."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def append(self, entry: Entry) -> None:
        self._entries.append(entry)

    def take(self) -> list[Entry]:
        """Return the entries, and clear the log."""
        entries, self._entries = self._entries, []
        return entries
