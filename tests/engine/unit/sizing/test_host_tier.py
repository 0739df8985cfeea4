"""The places of pages that are on their way to the host."""

from __future__ import annotations

import random

import pytest

from atom.sizing import host_tier
from atom.sizing.host_tier import HostTier


@pytest.mark.parametrize("seed", range(40))
def test_all_pages_of_a_step_have_a_place(seed: int) -> None:
    """As far as the tier has twice as many rows and the buffers stay small: what has no place is
    evicted without being written, and computed again."""
    dice = random.Random(seed)
    page_bytes = 2 ** dice.randrange(12, 26)
    step_pages, rows = dice.randrange(0, 2000), dice.randrange(1, 6000)
    tier = HostTier(rows, page_bytes, 0, 0, 1, 0, step_pages)
    pages, _ = tier.queue_sizes
    most = min(host_tier.MOST_QUEUE_BYTES // page_bytes, -(-rows // 2))
    assert pages >= min(step_pages, most)
    assert tier.piece_pages <= pages <= -(-rows // 2)
    small = HostTier(rows, page_bytes, 0, 0, 1, 0)
    assert pages == max(small.queue_sizes[0], min(step_pages, most)), "and no more"
    assert tier.staging_bytes == (pages + tier.piece_pages) * page_bytes
