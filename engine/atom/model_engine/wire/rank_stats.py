"""RankStatsBoard: the newest numbers that each rank told, and since when they are all told.

Read by /metrics and /server_info at any moment. Owned by AsyncLLMEngine.
"""

from __future__ import annotations

from atom.model_engine.wire.engine_protocol import StatsBody
from atom.model_engine.wire.rank_answers import add_stats


class RankStatsBoard:
    """by_rank: each rank's newest."""

    def __init__(self) -> None:
        self.by_rank: dict[int, StatsBody] = {}
        self._told_at: dict[int, float] = {}

    def put(self, rank: int, stats: StatsBody, now: float) -> None:
        """now: seconds since 1970."""
        self.by_rank[rank] = stats
        self._told_at[rank] = now

    @property
    def total(self) -> StatsBody | None:
        """Of all ranks together; None before the first has told any."""
        parts = list(self.by_rank.values())
        return add_stats(parts) if parts else None

    @property
    def told_at(self) -> float | None:
        """Since when every rank has told its numbers again, in seconds since 1970."""
        return min(self._told_at.values(), default=None)
