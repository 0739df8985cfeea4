"""StoredBlocks: writes to a BlockLog which blocks became findable and which were forgotten.

Stores the root hash of each sequence and its salt and adapter (Apart); the hashes of all later
blocks follow from the root. For blocks that an adapter computed it stores the adapter's name, which
each event reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from atom.model_engine.blocks.block_log import (
    Apart,
    BlockLog,
    Cleared,
    ImageKeys,
    Medium,
    Removed,
    Stored,
)
from atom.model_engine.blocks.host_pages import Page

# Sequences whose first block is not computed yet; far more than can be open.
_MOST_APART = 65_536
# Blocks with images that events may describe; the cache has far fewer.
_MOST_IMAGE_BLOCKS = 65_536


class StoredBlocks:
    def __init__(self, log: BlockLog, roots: Sequence[int] = ()) -> None:
        """roots: the hashes before the first block of a sequence without salt and adapter, of each
        group."""
        self._log = log
        self._roots = frozenset(roots)
        self._apart: dict[int, Apart] = {}
        self._lora_names: dict[int, str] = {}  # by the hash of a block
        self._images: dict[bytes, tuple[bytes, ImageKeys]] = {}

    def remember_apart(self, root: int, apart: Apart) -> None:
        """Store the salt and adapter behind a root hash, evicting the oldest root if the table is
        full."""
        self._apart[root] = apart
        if len(self._apart) > _MOST_APART:
            del self._apart[next(iter(self._apart))]

    def remember_images(self, described: Mapping[bytes, tuple[bytes, ImageKeys]]) -> None:
        """Store the tokens and images of blocks that are named by their images, evicting the oldest
        blocks if the table is full. described: by the packed name."""
        self._images.update(described)
        while len(self._images) > _MOST_IMAGE_BLOCKS:
            del self._images[next(iter(self._images))]

    def remove(self, hashes: list[int], medium: Medium = Medium.GPU) -> None:
        """Log blocks that are not findable in a medium any more."""
        if self._lora_names and medium is Medium.GPU:
            for each in hashes:
                self._lora_names.pop(each, None)
        self._log.append(Removed(hashes, medium))

    def of_page(self, page: Page, medium: Medium) -> Stored:
        """Return the event of a block whose page reaches a tier below the device."""
        is_first = page.parent in self._roots or page.parent in self._apart
        apart = self._apart.get(page.parent, Apart())
        return self._with_images(
            Stored(
                page.group,
                None if is_first else page.parent,
                [page.hash],
                page.packed,
                apart.salt if is_first else "",
                self._lora_names.get(page.hash),
                medium,
            )
        )

    def log(self, event: Stored) -> None:
        """Log an event of `of_page`."""
        self._log.append(event)

    def add_read(self, page: Page, index: int, lora_name: str | None) -> None:
        """Log a block that was read from the host. index: in its sequence."""
        if lora_name is not None and index:
            self._lora_names.setdefault(page.parent, lora_name)
        self.add(page.group, index, [page.parent, page.hash], page.packed)

    def clear(self) -> None:
        """Log that no block is findable any more."""
        self._lora_names.clear()
        self._log.append(Cleared())

    def add(self, group: int, first_block: int, hashes: Sequence[int], packed: bytes) -> None:
        """Log blocks that follow each other, all of them new. hashes: the one before the first
        block, then the one after each; packed: their tokens as int32."""
        before, *own = hashes
        if first_block:
            apart = Apart(lora_name=self._lora_names.get(before))
        else:
            apart = self._apart.get(before, Apart())
        if apart.lora_name is not None:
            self._lora_names.update(dict.fromkeys(own, apart.lora_name))
        parent = before if first_block else None
        stored = Stored(group, parent, own, packed, apart.salt, apart.lora_name)
        self._log.append(self._with_images(stored))

    def _with_images(self, stored: Stored) -> Stored:
        """Return the entry with the tokens of blocks that are named by their images."""
        if not self._images:
            return stored
        count = len(stored.hashes)
        size = len(stored.packed) // count
        named = [stored.packed[at * size : (at + 1) * size] for at in range(count)]
        found = [self._images.get(each, (each, None)) for each in named]
        if all(keys is None for _, keys in found):
            return stored
        tokens = b"".join(each for each, _ in found)
        return replace(stored, packed=tokens, images=tuple(keys for _, keys in found))

    def add_some(
        self, group: int, first_block: int, hashes: Sequence[int], packed: bytes, new: Sequence[int]
    ) -> None:
        """Log the new blocks among these, one entry per contiguous stretch. new: indices,
        ascending."""
        if not new:
            return
        size = len(packed) // (len(hashes) - 1)
        for begin, end in _stretches(new):
            part = packed[begin * size : end * size]
            self.add(group, first_block + begin, hashes[begin : end + 1], part)


def _stretches(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges of rows that follow each other: [0, 1, 4] is (0, 2), (4, 5)."""
    cuts = [0, *(at + 1 for at, (a, b) in enumerate(pairwise(rows)) if b != a + 1), len(rows)]
    return [(rows[begin], rows[end - 1] + 1) for begin, end in pairwise(cuts)]
