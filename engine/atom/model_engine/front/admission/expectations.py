"""Expectations: the latencies of a request that came to this server now, and its deadline.

A core predicts several times a second; requests that were sent to it since then are added here.
With several ranks the best one counts, where the router sends the next request. Pure but for the
numbers that it reads. Used by Admission, /metrics and AsyncLLMEngine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from atom.errors import RequestError
from atom.model_engine.wire.engine_protocol import RankStats
from atom.model_engine.wire.outlook_body import Limit

_LONGEST_RETRY_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Expected:
    """Latencies in seconds. request_seconds: that each further request adds to the first token;
    limit: of the first token; load: share of the time that the work of the last half minute takes
    in full steps."""

    ttft_seconds: float
    itl_seconds: float
    request_seconds: float
    limit: Limit
    load: float = 0.0


class Expectations:
    def __init__(
        self, by_rank: Callable[[], Mapping[int, RankStats]], unanswered: Callable[[], int]
    ) -> None:
        """by_rank: the newest statistics of each rank; unanswered: requests of this process that
        wait for their first token."""
        self._by_rank = by_rank
        self._unanswered = unanswered

    def now(self, more: int = 1) -> Expected | None:
        """Return the latencies of the last of `more` requests that come now; None until a rank
        predicts."""
        told = [each.outlook for each in self._by_rank().values()]
        found = [each.predicted for each in told if each is not None and each.predicted is not None]
        if not found:
            return None
        best = min(found, key=lambda each: each.ttft_seconds)
        counted = sum(each.counted for each in found)
        beyond = max(0, self._unanswered() - counted) + more - 1
        ttft = best.ttft_seconds + beyond / len(found) * best.request_seconds
        load = sum(each.load for each in found) / len(found)
        return Expected(ttft, best.itl_seconds, best.request_seconds, best.limit, load)

    def seconds_until(self, ttft_seconds: float) -> int | None:
        """Return in how many whole seconds a request would get its first token in that time, if no
        other came; None until a rank predicts."""
        expected = self.now()
        if expected is None:
            return None
        wait = math.ceil(expected.ttft_seconds - ttft_seconds)
        return min(_LONGEST_RETRY_SECONDS, max(1, wait))

    def check_deadline(self, count: int, seconds: float) -> None:
        """Refuse `count` requests of which one would get its first token later than that. Raises
        `RequestError` (429)."""
        expected = self.now(count)
        if expected is None or expected.ttft_seconds <= seconds:
            return
        raise RequestError(
            f"the first token is expected in {expected.ttft_seconds:.2f} s, after the deadline of "
            f"{seconds * 1e3:g} ms; try again later, or allow more time (deadline_ms)",
            status=429,
            code="deadline_exceeded",
            param="deadline_ms",
            retry_after_seconds=self.seconds_until(seconds),
        )

    def missed(self, seconds: float) -> RequestError:
        """Build the error of a queued request whose deadline has passed."""
        return RequestError(
            f"the request was queued for {seconds * 1e3:g} ms, its deadline, without a first "
            f"token; try again later, or allow more time (deadline_ms)",
            status=503,
            code="deadline_exceeded",
            param="deadline_ms",
            retry_after_seconds=self.seconds_until(seconds),
        )
