"""CachedBlocks: which blocks a reader of all events would know, kept for readers that come later.

Follows the same entries that become events; the publisher's thread alone has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from atom.model_engine.blocks.block_log import Cleared, Entry, Medium, Removed, Stored

_TOKEN_BYTES = 4
_Key = tuple[Medium, int]


class CachedBlocks:
    """Holds each cached block by its medium and hash."""

    def __init__(self, block_size: int) -> None:
        self._block_bytes = block_size * _TOKEN_BYTES
        self._blocks: dict[_Key, Stored] = {}

    def follow(self, entries: Sequence[Entry]) -> None:
        """Apply log entries: add stored blocks, drop removed ones."""
        for entry in entries:
            if isinstance(entry, Stored):
                self._blocks.update((_key(block), block) for block in self._apart(entry))
            elif isinstance(entry, Removed):
                for each in entry.hashes:
                    self._blocks.pop((entry.medium, each), None)
            else:
                self._blocks.clear()

    def entries(self) -> list[Entry]:
        """Return the entries that describe all cached blocks to a new reader, each block after its
        parent."""
        told: dict[_Key, Stored] = {}
        for block in self._blocks.values():
            chain = []
            at: Stored | None = block
            while at is not None and _key(at) not in told:
                chain.append(at)
                at = None if at.parent is None else self._blocks.get((at.medium, at.parent))
            told.update((_key(each), each) for each in reversed(chain))
        return [Cleared(), *told.values()]

    def _apart(self, entry: Stored) -> Iterator[Stored]:
        parent, salt = entry.parent, entry.salt
        for number, each in enumerate(entry.hashes):
            start = number * self._block_bytes
            packed = entry.packed[start : start + self._block_bytes]
            images = entry.images[number : number + 1]
            yield replace(
                entry, parent=parent, hashes=[each], packed=packed, salt=salt, images=images
            )
            parent, salt = each, ""


def _key(block: Stored) -> _Key:
    return block.medium, block.hashes[0]
