"""Sizes of DeepSeek V4's attention: the cached elements of a token, and the number of tokens.

One key of a token serves all heads, and is its value, too. The cache keeps a window of keys, and
beside it the inputs that the entries sum up; it keeps the entries of the whole sequence. Values
only, as in layers.py, whose attention may be of this kind.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom.sizing.attention.indexer import Indexer


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """A layer that attends to a window and to entries that sum up `rate` tokens each; at rate 0, to
    the window alone.

    `query_rank`: of compressed queries; `rope_dim`: elements of a head that rotate, its last ones;
    `output_groups`: of heads, each projected to `output_rank` elements before all are joined.
    `index`: the indexer that chooses entries, None without one. With an indexer, an entry also sums
    up the tokens of the previous entry.
    """

    query_rank: int
    rope_dim: int
    output_groups: int
    output_rank: int
    rate: int = 0
    index: Indexer | None = None

    @property
    def overlaps(self) -> bool:
        """Return whether an entry also sums up the tokens of the entry before."""
        return self.index is not None

    @property
    def index_dim(self) -> int:
        """Return the elements of an entry's key for the indexer, 0 without one."""
        return 0 if self.index is None else self.index.dim

    @property
    def series(self) -> int:
        """Count in how many entries a token is summed up."""
        return 2 if self.overlaps else 1

    @property
    def summed_tokens(self) -> int:
        """Count the newest tokens that the next entry may need."""
        return self.rate * self.series

    def window_elements(self, head_dim: int) -> int:
        """Return the number of elements of a token in the window: its key, and its contributions
        and weights for the entries of keys and of the indexer's keys."""
        if not self.rate:
            return head_dim
        return head_dim + 2 * self.series * (head_dim + self.index_dim)

    def entry_elements(self, head_dim: int) -> int:
        """Return the number of elements of an entry: its key and its indexer key."""
        return head_dim + self.index_dim if self.rate else 0

    def entries_of_block(self, block_size: int) -> int:
        """Count the entries that are complete in one block of tokens, at most."""
        return -(-block_size // self.rate) if self.rate else 0
