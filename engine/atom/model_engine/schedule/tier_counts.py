"""TierCounts: what the host's tier of the KV cache was asked for, gave, wrote and dropped.

Used by KVTiers, for the statistics of its scheduler and for the speed of reading.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from atom.model_engine.page_moves import MoveTotals


@dataclass(slots=True)
class TierCounts:
    """Totals of a tier. asked_tokens: of prompts beyond the device's prefix; found_tokens: of
    these, in the tier; computed_tokens: of these, computed since that was predicted to be faster;
    dropped_queue, dropped_full: pages that were not written, since too many were under way or every
    place was in use; spoiled: pages with a wrong checksum. moved: bytes and seconds of copies."""

    asked_tokens: int = 0
    found_tokens: int = 0
    computed_tokens: int = 0
    dropped_queue: int = 0
    dropped_full: int = 0
    spoiled: int = 0
    moved: MoveTotals = field(default_factory=MoveTotals)

    def seconds_to_load(self, size_bytes: int) -> float:
        """Predict the time of reading; 0 before the first measurement."""
        if not self.moved.load_bytes:
            return 0.0
        return size_bytes * self.moved.load_seconds / self.moved.load_bytes

    def totals(self, used: int, size: int) -> dict[str, Any]:
        """Return the counters by their names in StatsBody. used, size: places of the tier."""
        return {
            "offload_pages_used": used,
            "offload_pages": size,
            "offload_queries_total": self.asked_tokens,
            "offload_hits_total": self.found_tokens,
            "offload_computed_total": self.computed_tokens,
            "offload_dropped_queue_total": self.dropped_queue,
            "offload_dropped_full_total": self.dropped_full,
            "offload_checksum_errors_total": self.spoiled,
            "offload_load_bytes_total": self.moved.load_bytes,
            "offload_load_seconds_total": self.moved.load_seconds,
            "offload_store_bytes_total": self.moved.store_bytes,
            "offload_store_seconds_total": self.moved.store_seconds,
        }
