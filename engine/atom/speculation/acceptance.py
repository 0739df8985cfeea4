"""DraftCounts: the numbers of drafts and of accepted drafts, in all and by their place in a run.

The scheduler counts them and includes them in its stats; after every thousand drafts the log
reports the acceptance of the last thousand.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

_LOGGED_EVERY = 1000  # drafts: of a row and step


class DraftCounts:
    """Counts drafts and how many were accepted. drafts: times that a row carried any; tokens: that
    they had; accepted: of these, and accepted_at: how many drafts held at least so far, by position
    from the first."""

    def __init__(self) -> None:
        self.drafts = 0
        self.tokens = 0
        self.accepted = 0
        self.accepted_at: list[int] = []
        self._logged = (0, 0, 0)  # drafts, tokens and accepted at the last line

    def observe(self, drafted: NDArray[np.int32], accepted: NDArray[np.int32]) -> None:
        """Count the drafted and the accepted tokens of each row."""
        most = int(drafted.max(initial=0))
        if most == 0:
            return
        self.drafts += int(np.count_nonzero(drafted))
        self.tokens += int(drafted.sum())
        self.accepted += int(accepted.sum())
        self.accepted_at += [0] * (most - len(self.accepted_at))
        for position in range(int(accepted.max(initial=0))):
            self.accepted_at[position] += int(np.count_nonzero(accepted > position))
        if self.drafts - self._logged[0] >= _LOGGED_EVERY:
            self._log()

    def totals(self) -> dict[str, Any]:
        """Return the counters by their names in the scheduler's stats."""
        return {
            "drafts_total": self.drafts,
            "draft_tokens_total": self.tokens,
            "accepted_tokens_total": self.accepted,
            "accepted_at_totals": tuple(self.accepted_at),
        }

    def _log(self) -> None:
        now = (self.drafts, self.tokens, self.accepted)
        drafts, tokens, accepted = (new - old for new, old in zip(now, self._logged, strict=True))
        self._logged = now
        logger.info(
            "speculation: of %d drafts with %d tokens %d tokens held (%.1f %%), %.2f tokens a row "
            "and step",
            drafts,
            tokens,
            accepted,
            100 * accepted / tokens,
            1 + accepted / drafts,
        )
