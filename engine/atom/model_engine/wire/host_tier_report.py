"""HostTierReport: the sizes of the tiers below a core's KV cache, as READY tells them."""

from __future__ import annotations

import msgspec

from atom.sizing.host_tier import HostTier


class HostTierReport(msgspec.Struct, frozen=True):
    """Report the host's tier of a core's KV cache. num_pages, num_states: its rows for blocks and
    for checkpoints of states; page_bytes, state_bytes: of one of them on one rank; size_bytes: of
    all ranks; tokens: of sequences of max_model_len that fill the pages; queue_pages, queue_states:
    most of each that are being written at once. disk_bytes, disk_tokens: of files behind it."""

    num_pages: int
    num_states: int
    page_bytes: int
    state_bytes: int
    size_bytes: int
    tokens: int
    queue_pages: int
    queue_states: int
    disk_bytes: int = 0
    disk_tokens: int = 0

    @staticmethod
    def of(shape: HostTier, files: HostTier | None = None) -> HostTierReport:
        """Report a tier of this shape. files: the shape of a tier on a disk behind it."""
        pages, states = shape.queue_sizes
        return HostTierReport(
            num_pages=shape.num_pages,
            num_states=shape.num_states,
            page_bytes=shape.page_bytes,
            state_bytes=shape.state_bytes,
            size_bytes=shape.size_bytes,
            tokens=shape.tokens,
            queue_pages=pages,
            queue_states=states,
            disk_bytes=0 if files is None else files.size_bytes,
            disk_tokens=0 if files is None else files.tokens,
        )
