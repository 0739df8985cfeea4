"""The tier of the KV cache in the host's memory: how many pages it holds, and of how many tokens.

A page is a block of the device's cache outside the device, so it takes a block's bytes on every
rank of a copy of the model. If layers keep states, each interval of blocks has a checkpoint beside
its pages. Pure; the engine allocates by it, and the operator plans by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom.sizing.kv_budget import checkpoint_tokens, filling_tokens
from atom.sizing.kv_layout import KvLayout
from atom.sizing.limits import RunLimits

GIB = 1024**3
# Pages on their way to the host: enough that copies keep the bus busy, and at least 64 however
# large a page is. On a GPU each has a place in a staging buffer. What one step computes has to be
# on its way at once, since the core hears of the end of copies once a step.
_QUEUE_BYTES = 256 << 20
MOST_QUEUE_BYTES = 1536 << 20
_LEAST_QUEUE_PAGES = 64
_LEAST_QUEUE_STATES = 2


@dataclass(frozen=True, slots=True)
class HostTier:
    """The tier of one copy of the model. num_pages, num_states: rows for blocks and for checkpoints
    of states; page_bytes, state_bytes: of a row on one of the `ranks`; tokens: of sequences of the
    full length that fill the pages; step_pages: that one step computes at most."""

    num_pages: int
    page_bytes: int
    num_states: int
    state_bytes: int
    ranks: int
    tokens: int
    step_pages: int = 0

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all rows on all ranks."""
        pages = self.num_pages * self.page_bytes
        return self.ranks * (pages + self.num_states * self.state_bytes)

    @property
    def queue_sizes(self) -> tuple[int, int]:
        """Return the most pages of blocks, and of checkpoints, that are written at once: of half of
        the rows, since those that are being written evict others."""
        of_a_step = min(self.step_pages, MOST_QUEUE_BYTES // self.page_bytes)
        pages = max(self.piece_pages, min(of_a_step, -(-self.num_pages // 2)))
        states = 0
        if self.num_states:
            states = max(_LEAST_QUEUE_STATES, _QUEUE_BYTES // self.state_bytes)
        return pages, min(states, -(-self.num_states // 2))

    @property
    def piece_pages(self) -> int:
        """Return the pages that keep the bus busy in one direction."""
        pages = max(_LEAST_QUEUE_PAGES, _QUEUE_BYTES // self.page_bytes)
        return min(pages, -(-self.num_pages // 2))

    @property
    def staging_bytes(self) -> int:
        """Return the bytes of the buffers of a GPU between the cache and the host, both ways."""
        pages, states = self.queue_sizes
        return (pages + self.piece_pages) * self.page_bytes + 2 * states * self.state_bytes


def host_tier(size_bytes: int, layout: KvLayout, limits: RunLimits, ranks: int = 1) -> HostTier:
    """Divide `size_bytes` of a copy's host memory into pages. layout: of one rank. The tier has no
    page if less than one fits."""
    block_size = limits.block_size
    page_bytes = layout.bytes_per_token * block_size
    interval = checkpoint_tokens(layout, block_size) // block_size
    state_bytes = layout.state_bytes if interval else 0
    unit_bytes = (max(interval, 1) * page_bytes + state_bytes) * ranks
    units = max(0, size_bytes) // unit_bytes
    num_pages = units * max(interval, 1)
    return HostTier(
        num_pages=num_pages,
        page_bytes=page_bytes,
        num_states=units if interval else 0,
        state_bytes=state_bytes,
        ranks=ranks,
        tokens=filling_tokens(layout, num_pages, block_size, limits.max_model_len),
        step_pages=limits.max_num_batched_tokens // block_size * len(layout.groups),
    )
