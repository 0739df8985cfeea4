"""EvictionOrder: the order in which the entries of a cache are evicted.

`lru` evicts the entry that was used least recently. `protected` keeps up to half of the entries,
those that were used at least twice, apart: a scan of prompts that are never asked for again evicts
none of them (segmented LRU, Karedla, Love and Wherry 1994). An entry that leaves the protected half
becomes the newest of the others. Every operation is O(1). Knows keys alone; used by HostPages and
ProtectedPool.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Literal

Policy = Literal["lru", "protected"]

USES_TO_PROTECT = 2
_PROTECTED_PARTS = 2  # one of so many parts of the entries


class EvictionOrder:
    """Order the keys that may be evicted. A key that is not in it, such as one in use, keeps its
    number of uses until `forget`."""

    def __init__(self, size: int, policy: Policy) -> None:
        """size: of the cache, in entries."""
        self._most_protected = size // _PROTECTED_PARTS if policy == "protected" else 0
        self._others: OrderedDict[int, None] = OrderedDict()  # the least recently used first
        self._protected: OrderedDict[int, None] = OrderedDict()
        self._uses: dict[int, int] = {}  # of keys that were used, up to USES_TO_PROTECT

    def __len__(self) -> int:
        return len(self._others) + len(self._protected)

    def __iter__(self) -> Iterator[int]:
        """Return the keys, the next to be evicted first."""
        yield from self._others
        yield from self._protected

    def __contains__(self, key: int) -> bool:
        return key in self._others or key in self._protected

    def use(self, key: int) -> None:
        """Count a use of a key."""
        if self._most_protected:
            uses = self._uses.get(key, 0)
            if uses < USES_TO_PROTECT:
                self._uses[key] = uses + 1

    def add(self, key: int) -> None:
        """Add a key that may be evicted from now on, as the newest."""
        if self._uses.get(key, 0) < USES_TO_PROTECT:
            self._others[key] = None
            return
        self._protected[key] = None
        if len(self._protected) > self._most_protected:
            oldest, _ = self._protected.popitem(last=False)
            del self._uses[oldest]
            self._others[oldest] = None

    def remove(self, key: int) -> None:
        """Remove a key that is in use; it is added again after its use."""
        if key in self._others:
            del self._others[key]
        else:
            del self._protected[key]

    def pop(self) -> int:
        """Remove and return the key that is evicted next; there must be one."""
        key, _ = (self._others or self._protected).popitem(last=False)
        self._uses.pop(key, None)
        return key

    def forget(self, key: int) -> None:
        """Forget a key, in the order or not, and its uses."""
        self._others.pop(key, None)
        self._protected.pop(key, None)
        self._uses.pop(key, None)

    def clear(self) -> None:
        """Forget all keys."""
        self._others.clear()
        self._protected.clear()
        self._uses.clear()


def by_depth(block_tables: Sequence[list[int]], first_blocks: Sequence[int]) -> list[int]:
    """Return the blocks that are held of all groups, the least deep first: a prefix needs a block
    of each, so they are best evicted together."""
    tables = zip(block_tables, first_blocks, strict=True)
    deepest_first = zip_longest(*(reversed(table[first:]) for table, first in tables))
    listed = [block for blocks in deepest_first for block in blocks if block is not None]
    listed.reverse()
    return listed
