"""`kubectl atom top`: the engines' present work, from two looks at their /metrics. Pure.

Rates and quantiles are of the time between the two looks, gauges of the second.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from atom_operator.plugin.table import table

_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)")
_BOUND = re.compile(r'(?:^|,)le="([^"]+)"')
_HEADER = (
    "POD", "READY", "RUNNING", "WAITING", "KV-USED", "TOKENS/S", "PROMPT/S", "CACHED", "TTFT-P95",
    "DRAFTS-KEPT", "PREEMPTED/S",
)  # fmt: skip
_ACCEPTED, _DRAFTED = "spec_decode_num_accepted_tokens", "spec_decode_num_draft_tokens"
_TTFT = "atom:time_to_first_token_seconds_bucket"


@dataclass(frozen=True, slots=True)
class Look:
    """Hold one scrape: sums over label sets by metric, and cumulative buckets of the first
    token."""

    values: Mapping[str, float]
    first_token: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Sample:
    """Hold two looks at one pod; None if it did not answer."""

    pod: str
    before: Look | None
    after: Look | None


def parse(text: str) -> Look:
    """Parse Prometheus' text format; unknown lines are dropped."""
    values: dict[str, float] = {}
    buckets: dict[float, float] = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.match(line)
        if match is None:
            continue
        name, labels, value = match.group(1), match.group(2) or "", float(match.group(3))
        values[name] = values.get(name, 0.0) + value
        bound = _BOUND.search(labels) if name == _TTFT else None
        if bound is not None:
            edge = float(bound.group(1).replace("+Inf", "inf"))
            buckets[edge] = buckets.get(edge, 0.0) + value
    return Look(values, buckets)


def top_lines(
    samples: Sequence[Sample], seconds: float, columns: int | None = None
) -> Iterator[str]:
    """Yield a row per pod, and a total if there are several."""
    yield from table(_HEADER, _rows(samples, seconds), columns)


def top_document(samples: Sequence[Sample], seconds: float) -> list[dict[str, str]]:
    """Return the rows as -o json and yaml show them."""
    keys = [name.lower().replace("/s", "PerSecond").replace("-", "_") for name in _HEADER]
    return [dict(zip(keys, row, strict=True)) for row in _rows(samples, seconds)]


def _rows(samples: Sequence[Sample], seconds: float) -> list[tuple[str, ...]]:
    rows = [_row(sample, seconds) for sample in samples]
    return [*rows, _total(samples, seconds)] if len(samples) > 1 else rows


def kept_share(accepted: float, drafted: float) -> str:
    """Return the accepted share of drafted tokens as text; "-" if there were none."""
    return f"{accepted / drafted:.0%}" if drafted else "-"


def kept_drafts(looks: Sequence[Look | None]) -> str:
    """Describe how many drafts were kept since the pods began."""
    found = [look.values for look in looks if look is not None]

    def total(metric: str) -> float:
        return sum(values.get(f"atom:{metric}_total", 0.0) for values in found)

    drafted, kept, drafts = total(_DRAFTED), total(_ACCEPTED), total("spec_decode_num_drafts")
    if not drafted:
        return "no drafts so far" if found else "no pod answers"
    share = kept_share(kept, drafted)
    return f"{share} of {drafted:,.0f} drafted tokens kept, {1 + kept / drafts:.2f} tokens a step"


def _row(sample: Sample, seconds: float) -> tuple[str, ...]:
    before, after = sample.before, sample.after
    if before is None or after is None:
        return (sample.pod, "no answer", *["-"] * (len(_HEADER) - 2))

    def rate(metric: str) -> float:
        name = f"atom:{metric}_total"
        # A pod that restarted in between counts from zero again.
        return max(0.0, after.values.get(name, 0.0) - before.values.get(name, 0.0)) / seconds

    used = after.values.get("atom:kv_cache_blocks_used", 0.0)
    total = after.values.get("atom:kv_cache_blocks_total", 0.0)
    prompt = rate("prompt_tokens")
    cached = f"{rate('prefix_cache_cached_tokens') / prompt:.0%}" if prompt else "-"
    return (
        sample.pod,
        "yes" if after.values.get("atom:ready") else "no",
        f"{after.values.get('atom:requests_running', 0):.0f}",
        f"{after.values.get('atom:requests_waiting', 0):.0f}",
        f"{used / total:.0%}" if total else "-",
        f"{rate('generation_tokens'):,.0f}",
        f"{prompt:,.0f}",
        cached,
        _first_token(before, after),
        kept_share(rate(_ACCEPTED), rate(_DRAFTED)),
        f"{rate('preemptions'):.1f}",
    )


def _total(samples: Sequence[Sample], seconds: float) -> tuple[str, ...]:
    """Return the sum of all that answered, as of one engine."""
    answered = [(one.before, one.after) for one in samples if one.before and one.after]
    before, after = (_merge([pair[side] for pair in answered]) for side in (0, 1))
    ready = f"{sum(bool(pair[1].values.get('atom:ready')) for pair in answered)}/{len(samples)}"
    row = _row(Sample("all", before, after), seconds)
    return (row[0], ready, *row[2:])


def _merge(looks: Sequence[Look]) -> Look:
    values: dict[str, float] = {}
    buckets: dict[float, float] = {}
    for look in looks:
        for name, value in look.values.items():
            values[name] = values.get(name, 0.0) + value
        for edge, count in look.first_token.items():
            buckets[edge] = buckets.get(edge, 0.0) + count
    return Look(values, buckets)


def _first_token(before: Look, after: Look) -> str:
    """Return the bucket's edge below which 95% of the first tokens between the looks came."""
    counts = {
        edge: count - before.first_token.get(edge, 0.0) for edge, count in after.first_token.items()
    }
    total = counts.get(math.inf, 0.0)
    if total <= 0:
        return "-"
    edge = min(edge for edge, count in counts.items() if count >= 0.95 * total)
    largest = max((edge for edge in counts if edge != math.inf), default=0.0)
    return f">{largest:g}s" if edge == math.inf else f"<={edge:g}s"
