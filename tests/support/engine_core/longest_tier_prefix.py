"""WatchedTiers: compares each search of a tier with a search that tries every length.

The tier's own search looks at each block once and goes back from windows; this one asks of every
length whether each group has the blocks that the next token sees, on the device or as a page.
"""

from __future__ import annotations

import xxhash

from atom.model_engine.block_manager import PrefixMatch
from atom.model_engine.schedule.tiers.kv_tiers import KVTiers
from atom.model_engine.sequence import Sequence

_MOST_READS = 2


class WatchedTiers:
    """Watches the reads of a scheduler's tier from now on. gainful: how often a prefix of the tier
    was longer than the device's, and could be read."""

    def __init__(self, tiers: KVTiers) -> None:
        self._tiers, self._begin = tiers, tiers.begin
        self.gainful = 0
        tiers.begin = self._watched  # type: ignore[method-assign]

    def _watched(self, sequence: Sequence, found: PrefixMatch, seconds_a_token: float) -> bool:
        reads = sequence.tier_reads
        gain, fits = self._longest(sequence, found, of_files=False)
        further, _ = self._longest(sequence, found, of_files=True)
        began = self._begin(sequence, found, seconds_a_token)
        assert began or not (gain > 0 and fits and reads < _MOST_READS), (gain, fits, reads)
        assert not began or (further > 0 and reads < _MOST_READS), (further, reads)
        if self._tiers._files is None:
            assert began <= fits
        self.gainful += began
        return began

    def _longest(
        self, sequence: Sequence, found: PrefixMatch, *, of_files: bool
    ) -> tuple[int, bool]:
        """Return the blocks that the tiers add to a prefix, 0 if too few, and whether they find
        room. of_files: files count, too."""
        blocks, pages = self._tiers._blocks, self._tiers._pages
        files = self._tiers._files if of_files else None
        size, pool, marks = blocks.block_size, blocks.pool, blocks.marks
        tokens = sequence.named(sequence.cacheable_token_ids, 0, size)
        hashes = [blocks.root_of(sequence.cache_salt, sequence.lora)]
        packed = [tokens[at : at + size].tobytes() for at in range(0, len(tokens) - size, size)]
        for each in packed:
            hashes.append(xxhash.xxh64_intdigest(each, hashes[-1]))
        for end in range(len(packed), found.num_blocks, -1):
            places = []
            for group, mark in zip(blocks.groups, marks, strict=True):
                for at in range(end - group.matched_blocks(end, size), end):
                    name = hashes[at + 1] ^ mark, hashes[at] ^ mark, packed[at]
                    in_file = files is not None and files.find(*name, b"") is not None
                    page = pages.find(*name) is not None or in_file
                    places.append((pool.find_proven(*name), page))
            if any(block is None and not page for block, page in places):
                continue
            held = [block for block, _ in places if block is not None]
            room = len(places) - len(held) + pool.count_unreferenced(held) <= pool.num_free
            gain = end - found.num_blocks
            return (gain if gain * size >= self._tiers._setup.min_tokens else 0), room
        return 0, True
