"""Draft acceptance during a benchmark, from the counters of the server's /metrics.

Keys are those that `vllm bench serve` saves; vLLM's counters are read as well as ours. The report
stays empty if a server counts no drafts, or exports no counters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from atom.model_engine.wire.core_stats import StatsBody

_PREFIXES = ("atom:spec_decode_num_", "vllm:spec_decode_num_")


@dataclass(frozen=True, slots=True)
class DraftTotals:
    """Counts of drafts since the server's start, over all of its models and engines."""

    drafts: float = 0.0
    draft_tokens: float = 0.0
    accepted_tokens: float = 0.0
    accepted_at: dict[int, float] = field(default_factory=dict)


def counted_drafts(stats: StatsBody | None) -> DraftTotals:
    """Read the draft counts of an engine in this process."""
    if stats is None:
        return DraftTotals()
    return DraftTotals(
        stats.drafts_total,
        stats.draft_tokens_total,
        stats.accepted_tokens_total,
        dict(enumerate(map(float, stats.accepted_at_totals))),
    )


async def read_draft_totals(session: aiohttp.ClientSession) -> DraftTotals:
    """Return the draft counters of the server's /metrics; zeros if it exports none."""
    try:
        async with session.get("metrics") as response:
            text = await response.text() if response.status == 200 else ""
        return draft_totals(text)
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return DraftTotals()


def draft_totals(text: str) -> DraftTotals:
    """Read the draft counts of a page in Prometheus' text format. Raises `ValueError` on one that
    is not."""
    sums: dict[str, float] = {}
    accepted_at: dict[int, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            prefix = next((each for each in _PREFIXES if sample.name.startswith(each)), None)
            if prefix is None or not sample.name.endswith("_total"):
                continue
            name = sample.name.removeprefix(prefix).removesuffix("_total")
            if name == "accepted_tokens_per_pos":
                position = int(sample.labels["position"])
                accepted_at[position] = accepted_at.get(position, 0.0) + sample.value
            else:
                sums[name] = sums.get(name, 0.0) + sample.value
    return DraftTotals(
        sums.get("drafts", 0.0),
        sums.get("draft_tokens", 0.0),
        sums.get("accepted_tokens", 0.0),
        accepted_at,
    )


def acceptance(before: DraftTotals, after: DraftTotals) -> dict[str, Any]:
    """Return the acceptance figures between two readings; empty if there were no drafts. Rates in
    percent; the length is tokens of a request that carried drafts in a step."""
    drafts = after.drafts - before.drafts
    tokens = after.draft_tokens - before.draft_tokens
    accepted = after.accepted_tokens - before.accepted_tokens
    if drafts <= 0 or tokens <= 0:
        return {}
    by_position = [
        round((after.accepted_at[position] - before.accepted_at.get(position, 0.0)) / drafts, 4)
        for position in sorted(after.accepted_at)
    ]
    return {
        "spec_decode_acceptance_rate": round(100 * accepted / tokens, 2),
        "spec_decode_acceptance_length": round(1 + accepted / drafts, 4),
        "spec_decode_num_drafts": int(drafts),
        "spec_decode_draft_tokens": int(tokens),
        "spec_decode_accepted_tokens": int(accepted),
        "spec_decode_per_position_acceptance_rates": by_position,
    }
