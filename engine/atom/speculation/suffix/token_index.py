"""TokenIndex: find earlier occurrences of a text's last tokens, in bounded time and memory.

As in a DEFLATE compressor, positions with the same last tokens are chained, the newest first: by
the hash of the last 16, of the last 4 and of the last token. A search follows one chain for a fixed
number of steps, then compares the tokens themselves. So a text of one repeated token costs as much
as any other. The tokens are a ring whose oldest part is given up in constant time. A token takes 28
bytes: its number, and a link and a head of each chain. Appends are vectorised, and linear in the
appended tokens. Pure numpy, torch-free; used by SuffixDrafter for a row's own text and by
AnswerStore.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_CANDIDATES = 32  # occurrences that a search follows
SEPARATOR = -1  # between texts of one index; no match and no continuation contains it

_CHAINED = (16, 4, 1)  # last tokens that a chain's positions have in common; powers of two
_LEAST_CAPACITY = 256  # tokens
_NONE = -1
_MULTIPLIER = 0x9E3779B97F4A7C15  # odd, its bits spread: of 64-bit polynomial hashes
_WORD = (1 << 64) - 1
_LAST_POSITION = np.iinfo(np.int32).max
_POWERS = tuple(pow(_MULTIPLIER, exponent, 1 << 64) for exponent in range(_CHAINED[0]))


class Occurrences(NamedTuple):
    """Earlier occurrences of a text's end: the number of matched tokens, and the positions of the
    tokens behind them, the newest first."""

    matched: int
    behind: NDArray[np.int64]


class TokenIndex:
    """An index of up to `capacity` tokens at first, which grows with its text."""

    def __init__(self, capacity: int = 0) -> None:
        self._begin(capacity)

    def _begin(self, capacity: int) -> None:
        size = 1 << (max(capacity, _LEAST_CAPACITY) - 1).bit_length()
        self._mask = size - 1
        self._shift = 65 - size.bit_length()  # of a hash, to leave a bucket
        self._tokens = np.zeros(size, dtype=np.int32)
        self._heads = np.full((len(_CHAINED), size), _NONE, dtype=np.int32)
        self._earlier = np.full((len(_CHAINED), size), _NONE, dtype=np.int32)
        self._first = self._end = 0  # positions of the text that is there

    def __len__(self) -> int:
        return self._end - self._first

    @property
    def capacity(self) -> int:
        """Return the tokens that there is memory for now."""
        return self._mask + 1

    def append(self, tokens: NDArray[np.int32]) -> None:
        """Append tokens to the text."""
        if not len(tokens):
            return
        needed = len(self) + len(tokens)
        if needed > self.capacity or self._end + len(tokens) > _LAST_POSITION:
            self._rebuild(max(self.capacity, needed))
        start, self._end = self._end, self._end + len(tokens)
        self._tokens[np.arange(start, self._end) & self._mask] = tokens
        known = max(self._first, start - _CHAINED[0] + 1)
        self._link(known, start)

    def drop_first(self, count: int) -> None:
        """Drop the oldest tokens; memory of which most is unused is given back."""
        self._first += count
        if self.capacity > _LEAST_CAPACITY and 4 * len(self) < self.capacity:
            self._rebuild(2 * len(self))

    def find(self, tail: Sequence[int]) -> Occurrences | None:
        """Find the longest earlier occurrences of the end of `tail`, the last tokens of a text,
        among the newest ones that share its last 16, 4 or 1 tokens; None without any."""
        for chain, shared in enumerate(_CHAINED):
            if shared > len(tail):
                continue
            ends = self._chained(chain, _hash_of(tail[-shared:]) >> self._shift)
            if not ends:
                continue
            found = self._longest(np.array(ends, dtype=np.int64), tail)
            if found is not None and found.matched >= shared:
                return found
        return None

    def continuations(
        self, behind: NDArray[np.int64], length: int, *, repeat: bool
    ) -> NDArray[np.int32]:
        """Return the tokens [n, length] from each position on, SEPARATOR behind the last one.
        repeat: the text continues with itself there, so that a period goes on."""
        ahead = np.arange(length)
        at = behind[:, None] + ahead
        if repeat:
            at = behind[:, None] + ahead % (self._end - behind)[:, None]
        tokens: NDArray[np.int32] = self._tokens.take(at & self._mask)
        tokens[at >= self._end] = SEPARATOR
        return tokens

    # ---- chains ---------------------------------------------------------------------------------

    def _rebuild(self, capacity: int) -> None:
        text = self._tokens[np.arange(self._first, self._end) & self._mask]
        self._begin(capacity)
        self.append(text)

    def _link(self, known: int, start: int) -> None:
        """Put the positions from `start` on into the chains; the text is known from `known` on."""
        text = self._tokens[np.arange(known, self._end) & self._mask]
        hashes, width = text.astype(np.uint64) + np.uint64(1), 1
        for chain in range(len(_CHAINED) - 1, -1, -1):
            while width < _CHAINED[chain]:  # of twice as many tokens, that of both halves
                if len(hashes) <= width:
                    return
                hashes = hashes[width:] + hashes[:-width] * np.uint64(_POWERS[width])
                width *= 2
            skipped = max(0, start - known - (width - 1))
            first = known + width - 1 + skipped
            buckets = (_mixed(hashes[skipped:]) >> np.uint64(self._shift)).astype(np.intp)
            self._link_chain(chain, np.arange(first, self._end), buckets)

    def _link_chain(
        self, chain: int, positions: NDArray[np.intp], buckets: NDArray[np.intp]
    ) -> None:
        heads, earlier = self._heads[chain], self._earlier[chain]
        order = np.argsort(buckets, kind="stable")
        positions, buckets = positions[order], buckets[order]
        before = heads[buckets]
        again = buckets[1:] == buckets[:-1]
        before[1:][again] = positions[:-1][again]
        earlier[positions & self._mask] = before
        heads[buckets] = positions  # of equal buckets the last, which is the newest

    def _chained(self, chain: int, bucket: int) -> list[int]:
        """Return the newest positions of a chain that a token follows, the newest first."""
        earlier, mask, first, last = self._earlier[chain], self._mask, self._first, self._end - 1
        ends: list[int] = []
        at = int(self._heads[chain, bucket])
        for _ in range(MOST_CANDIDATES):
            if at < first:
                break
            if at < last:
                ends.append(at)
            at = int(earlier[at & mask])
        return ends

    def _longest(self, ends: NDArray[np.int64], tail: Sequence[int]) -> Occurrences | None:
        """Return the positions of `ends` before which most of the tail's last tokens stand."""
        back = np.arange(len(tail))
        at = ends[:, None] - back
        said = np.array(tail[::-1], dtype=np.int32)
        equal = (self._tokens[at & self._mask] == said) & (at >= self._first)
        lengths = np.logical_and.accumulate(equal, axis=1).sum(axis=1)
        behind = ends + 1
        lengths[self._tokens[behind & self._mask] == SEPARATOR] = 0
        matched = int(lengths.max())
        return Occurrences(matched, behind[lengths == matched]) if matched else None


def _hash_of(tokens: Sequence[int]) -> int:
    """Return the hash of a few tokens, equal to that of `TokenIndex._link`."""
    pairs = zip(reversed(tokens), _POWERS, strict=False)
    summed = sum((token + 1) * power for token, power in pairs)
    return (summed & _WORD) * _MULTIPLIER & _WORD


def _mixed(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return hashes * np.uint64(_MULTIPLIER)
