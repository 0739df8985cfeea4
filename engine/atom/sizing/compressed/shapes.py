"""Attention of DeepSeek V4 as sizes: what a layer keeps of a token, and of how many it keeps that.

One key of a token stands for all heads, and is its value, too. It is kept in a window, and beside
it what the entries are summed up of; entries are kept of the whole sequence. Values only, as
layers.py, whose attention may be of this kind.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """Describe a layer that attends to a window and to entries that sum up `rate` tokens each, of a
    rate of 0 to the window alone.

    `query_rank`: of compressed queries; `rope_dim`: elements of a head that rotate, its last;
    `output_groups`: of heads, each projected to `output_rank` elements before all are joined.
    `index_heads`, `index_dim` and `index_top_k`, how many entries it selects: of an indexer, 0
    without. Where there is one, an entry sums up the tokens of the entry before, too.
    """

    query_rank: int
    rope_dim: int
    output_groups: int
    output_rank: int
    rate: int = 0
    index_heads: int = 0
    index_dim: int = 0
    index_top_k: int = 0

    @property
    def overlaps(self) -> bool:
        """Return whether an entry also sums up the tokens of the entry before."""
        return self.index_heads > 0

    @property
    def series(self) -> int:
        """Count in how many entries a token is summed up."""
        return 2 if self.overlaps else 1

    @property
    def summed_tokens(self) -> int:
        """Count the newest tokens that the next entry may need."""
        return self.rate * self.series

    def window_elements(self, head_dim: int) -> int:
        """Count what is kept of a token in the window: its key, and what it adds to entries of keys
        and of the indexer's, with how much of it counts."""
        if not self.rate:
            return head_dim
        return head_dim + 2 * self.series * (head_dim + self.index_dim)

    def entry_elements(self, head_dim: int) -> int:
        """Count what is kept of an entry: its key, and the indexer's."""
        return head_dim + self.index_dim if self.rate else 0

    def entries_of_block(self, block_size: int) -> int:
        """Count the entries that are complete in one block of tokens, at most."""
        return -(-block_size // self.rate) if self.rate else 0
