"""PromptCounts: how many prompt tokens were admitted, and how many of them the prefix cache spared.

Each request counts once, at its first admission: a preemption changes nothing. Used by Scheduler,
for its statistics.
"""

from __future__ import annotations

from typing import Any

from atom.model_engine.sequence import Sequence


class PromptCounts:
    def __init__(self, *, caching: bool) -> None:
        """caching: whether the prefix cache is on."""
        self._caching = caching
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._cache_requests = 0
        self._cache_full_tokens = 0

    def add(self, sequence: Sequence, cached: int) -> None:
        """Count a sequence that is admitted for the first time. cached: tokens found in the
        cache."""
        self._prompt_tokens += sequence.num_tokens
        looked_up = len(sequence.cacheable_token_ids)
        if self._caching and looked_up:
            self._cache_requests += 1
            self._cache_full_tokens += looked_up
            self._cached_tokens += cached

    def totals(self) -> dict[str, Any]:
        """Return the counters by their names in StatsBody."""
        return {
            "prompt_tokens_total": self._prompt_tokens,
            "cached_tokens_total": self._cached_tokens,
            "cache_requests_total": self._cache_requests,
            "cache_full_tokens_total": self._cache_full_tokens,
        }
