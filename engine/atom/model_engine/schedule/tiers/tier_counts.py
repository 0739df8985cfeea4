"""TierCounts: what the host's tier of the KV cache was asked for, gave, wrote and dropped.

Used by KVTiers, for the statistics of its scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from atom.model_engine.kv_disk.disk_moves import DiskTotals
from atom.model_engine.page_moves import MoveTotals


@dataclass(slots=True)
class TierCounts:
    """Totals of the tiers. asked_tokens: of prompts beyond the device's prefix; found_tokens: of
    these, in the host's memory; disk_found_tokens: of these, in files; computed_tokens: of these,
    computed since that was predicted to be faster; dropped_queue, dropped_full: pages that were not
    written, since too many were under way or every place was in use; dropped_cheap: pages that were
    not written, since they are computed faster than read; spoiled: pages with a wrong
    checksum. moved: bytes and seconds of copies."""

    asked_tokens: int = 0
    found_tokens: int = 0
    disk_found_tokens: int = 0
    computed_tokens: int = 0
    dropped_queue: int = 0
    dropped_full: int = 0
    dropped_cheap: int = 0
    spoiled: int = 0
    moved: MoveTotals = field(default_factory=MoveTotals)

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
            "offload_dropped_cheap_total": self.dropped_cheap,
            "offload_checksum_errors_total": self.spoiled,
            "offload_load_bytes_total": self.moved.load_bytes,
            "offload_load_seconds_total": self.moved.load_seconds,
            "offload_store_bytes_total": self.moved.store_bytes,
            "offload_store_seconds_total": self.moved.store_seconds,
        }

    def disk_totals(self, disk: DiskTotals, dropped: int) -> dict[str, Any]:
        """Return the counters of files by their names in StatsBody. dropped: pages that were not
        written."""
        return {
            "offload_disk_pages": disk.pages,
            "offload_disk_used_bytes": disk.used_bytes,
            "offload_disk_size_bytes": disk.size_bytes,
            "offload_disk_hits_total": self.disk_found_tokens,
            "offload_disk_dropped_total": dropped,
            "offload_disk_load_bytes_total": disk.load_bytes,
            "offload_disk_load_seconds_total": disk.load_seconds,
            "offload_disk_store_bytes_total": disk.store_bytes,
            "offload_disk_store_seconds_total": disk.store_seconds,
            "offload_disk_errors_total": disk.errors,
        }
