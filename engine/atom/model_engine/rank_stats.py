"""RankStatsBoard: the newest numbers that each rank told, and since when they are all told.

Read by /metrics and /server_info at any moment. Owned by AsyncLLMEngine.
"""

from __future__ import annotations

from collections.abc import Iterable

from atom.model_engine.engine_protocol import RankStats, StatsBody
from atom.model_engine.rank_answers import add_stats


class RankStatsBoard:
    """by_rank: each rank's newest."""

    def __init__(self) -> None:
        self.by_rank: dict[int, RankStats] = {}
        self._told_at: dict[int, float] = {}

    def put(self, told: RankStats, now: float) -> None:
        """now: seconds since 1970."""
        # A heartbeat comes from a thread of its own, and may be overtaken by a step.
        keep_newest(self.by_rank, [told])
        self._told_at[told.rank] = now

    @property
    def total(self) -> StatsBody | None:
        """Of all ranks together; None before the first has told any."""
        parts = [told.stats for told in self.by_rank.values()]
        return add_stats(parts) if parts else None

    @property
    def told_at(self) -> float | None:
        """Since when every rank has told its numbers again, in seconds since 1970."""
        return min(self._told_at.values(), default=None)


def keep_newest(by_rank: dict[int, RankStats], told: Iterable[RankStats]) -> None:
    """Replace what is older than these."""
    for one in told:
        known = by_rank.get(one.rank)
        if known is None or one.number >= known.number:
            by_rank[one.rank] = one
