"""RankAnswers and RankStatsBoard: combine the ranks' messages into those of one engine.

READY and UTILITY_RESPONSE are complete when every rank has answered; progress is that of the rank
which is furthest behind; stats are sums. Pure. RankAnswers belongs to CoreManager's output thread,
the board to AsyncLLMEngine, for /metrics and /server_info.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, zip_longest

import msgspec

from atom.model_engine.wire.core_stats import StatsBody
from atom.model_engine.wire.engine_protocol import (
    EngineReport,
    ProgressBody,
    RankReport,
    RankStats,
    UtilityResponseBody,
)


class RankAnswers:
    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._reports: dict[int, EngineReport] = {}
        self._phases: list[str] = []  # in the order in which any rank came to them
        self._progress: dict[int, tuple[int, float]] = {}  # rank → (index of its phase, share)
        self._calls: dict[int, dict[int, UtilityResponseBody]] = {}  # call → rank → answer
        self._lost: set[int] = set()

    def ready(self, rank: int, report: EngineReport) -> EngineReport | None:
        """Return the whole engine's report, once, with the last rank's."""
        if rank in self._reports:
            return None
        self._reports[rank] = report
        if len(self._reports) < self._ranks:
            return None
        return merge_reports([self._reports[rank] for rank in range(self._ranks)])

    def progress(self, rank: int, body: ProgressBody) -> ProgressBody:
        """Return where the rank is that is furthest behind."""
        if body.phase not in self._phases:
            self._phases.append(body.phase)
        self._progress[rank] = (self._phases.index(body.phase), body.fraction)
        last = min(self._progress.get(each, (0, 0.0)) for each in range(self._ranks))
        return ProgressBody(phase=self._phases[last[0]], fraction=last[1])

    def utility(self, rank: int, body: UtilityResponseBody) -> UtilityResponseBody | None:
        """Take a rank's answer; with the last one, return a list of each rank's result, or an error
        that names the ranks which failed."""
        self._calls.setdefault(body.call_id, {})[rank] = body
        return self._complete(body.call_id)

    def lose(self, rank: int) -> list[UtilityResponseBody]:
        """Stop expecting a rank's answers; return the calls that waited for it alone."""
        self._lost.add(rank)
        done = [self._complete(call_id) for call_id in list(self._calls)]
        return [answer for answer in done if answer is not None]

    def _complete(self, call_id: int) -> UtilityResponseBody | None:
        """Return the answer to a call, once every rank that is left has given its own."""
        answers = self._calls[call_id]
        asked = [rank for rank in range(self._ranks) if rank not in self._lost]
        if not answers.keys() >= set(asked):
            return None
        del self._calls[call_id]
        errors = [
            f"rank {rank}: {answers[rank].error}" if self._ranks > 1 else answers[rank].error
            for rank in asked
            if answers[rank].error is not None
        ]
        if errors:
            return UtilityResponseBody(call_id, error="; ".join(map(str, errors)))
        return UtilityResponseBody(call_id, None, [answers[rank].result for rank in asked])


def merge_reports(reports: Sequence[EngineReport]) -> EngineReport:
    """Merge the reports of these ranks into one of an engine. Sizes are those of the rank with the
    fewest blocks (the guarantee for any request); `ranks` has each one's own."""
    smallest = min(reports, key=lambda report: report.num_blocks)
    ranks = [
        RankReport(
            rank=rank,
            device=report.device,
            num_blocks=report.num_blocks,
            kv_tokens=report.kv_tokens,
            kv_cache_bytes=report.kv_cache_bytes,
            weights_bytes=report.weights_bytes,
            peak_bytes=report.peak_bytes,
            total_memory_bytes=report.total_memory_bytes,
        )
        for rank, report in enumerate(reports)
    ]
    return msgspec.structs.replace(smallest, ranks=ranks)


def add_stats(parts: Sequence[StatsBody]) -> StatsBody:
    """Sum the ranks' statistics, field by field; the adapters are the union of the ranks'."""
    columns = {
        name: [getattr(part, name) for part in parts] for name in StatsBody.__struct_fields__
    }
    accepted_at = columns.pop("accepted_at_totals")
    running, waiting = columns.pop("running_loras"), columns.pop("waiting_loras")
    errors: Counter[str] = Counter()
    for column in columns.pop("offload_disk_errors_total"):
        errors.update(dict(column))
    return StatsBody(
        **{name: sum(column) for name, column in columns.items()},
        running_loras=tuple(dict.fromkeys(chain.from_iterable(running))),
        waiting_loras=tuple(dict.fromkeys(chain.from_iterable(waiting))),
        accepted_at_totals=tuple(map(sum, zip_longest(*accepted_at, fillvalue=0))),
        offload_disk_errors_total=tuple(sorted(errors.items())),
    )


class RankStatsBoard:
    """Hold the ranks' statistics. by_rank: each rank's latest. num_waiting: requests that wait for
    a place in the engine; read with every token."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        """wall_clock: in seconds since 1970."""
        self._wall_clock = wall_clock
        self.by_rank: dict[int, RankStats] = {}
        self.num_waiting = 0
        self._told_at: dict[int, float] = {}

    def put(self, told: RankStats) -> None:
        """Store a rank's statistics."""
        # A heartbeat is sent by a separate thread, and a step may overtake it.
        keep_newest(self.by_rank, [told])
        self._told_at[told.rank] = self._wall_clock()
        self._count_waiting()

    def lose(self, rank: int) -> None:
        """Keep the totals of a rank that is gone, so that no sum goes back; nothing runs there."""
        told = self.by_rank.get(rank)
        self._told_at.pop(rank, None)
        if told is not None:
            gauges = [name for name in StatsBody.__struct_fields__ if "_total" not in name]
            none = {
                name: type(getattr(told.stats, name))() for name in ("kv_blocks_total", *gauges)
            }
            self.by_rank[rank] = msgspec.structs.replace(
                told, stats=msgspec.structs.replace(told.stats, **none)
            )
            self._count_waiting()

    def _count_waiting(self) -> None:
        self.num_waiting = sum(told.stats.requests_waiting for told in self.by_rank.values())

    @property
    def total(self) -> StatsBody | None:
        """Return the statistics summed over all ranks; None before the first report."""
        parts = [told.stats for told in self.by_rank.values()]
        return add_stats(parts) if parts else None

    @property
    def told_at(self) -> float | None:
        """Return since when every rank has reported again, in seconds since 1970."""
        return min(self._told_at.values(), default=None)


def keep_newest(by_rank: dict[int, RankStats], told: Iterable[RankStats]) -> None:
    """Replace statistics that are older than the given ones."""
    for one in told:
        known = by_rank.get(one.rank)
        if known is None or one.number >= known.number:
            by_rank[one.rank] = one
