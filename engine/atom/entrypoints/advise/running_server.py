"""The load of a running server, from its counters: rate, lengths, cached prompts, kept drafts.

Counters are totals, so that two readings are needed: of a URL, some seconds apart, or two saved
bodies of /metrics. Reads this server's names and vLLM's; several ranks or pods are added up.
"""

from __future__ import annotations

import http.client
import math
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from atom.advisor.errors import AdviceError
from atom.advisor.load import RateLoad

_URL_SCHEMES = ("http://", "https://")
_TIMEOUT_SECONDS, _MOST_BYTES = 10.0, 16 * 2**20
_FEW_REQUESTS = 100
_PREFIXES = ("atom:", "vllm:")
# Cached prompt tokens, and the tokens that they are a share of, by either server's names.
_CACHED = (
    ("prefix_cache_cached_tokens_total", "prompt_tokens_total"),
    ("prefix_cache_hits_total", "prefix_cache_queries_total"),
)
# Times that rows carried drafts, their tokens, and the accepted ones, by both servers' names.
_DRAFTS = (
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
)
_HALVINGS = 30

Totals = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoad(RateLoad):
    """Describe a load of a server. source: its place; requests: that ended between the readings;
    acceptance: the chance of a draft whose predecessors were accepted, None without drafts."""

    source: str
    requests: int
    acceptance: float | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        found = [
            f"the load of {self.source}: {self.rate:.3g} requests/s of {self.input_tokens} and "
            f"{self.output_tokens} tokens, {self.prefix:.0%} of the prompts cached; lengths are "
            "means, and --load with spread=… compares others"
        ]
        if self.requests < _FEW_REQUESTS:
            found.append(f"only {self.requests} requests ended between the readings")
        return tuple(found)


def load_of_metrics(
    place: str, seconds: float, sleep: Callable[[float], None] = time.sleep
) -> MeasuredLoad:
    """Read a URL twice, or two files `BEFORE,AFTER`. seconds: between the readings. Raises
    AdviceError."""
    if not 0 < seconds < math.inf:
        raise AdviceError(f"--metrics-seconds {seconds}: must be above 0")
    if place.startswith(_URL_SCHEMES):
        url = place if place.rstrip("/").endswith("/metrics") else f"{place.rstrip('/')}/metrics"
        before = totals_of(_fetched(url), url)
        sleep(seconds)
        return _load(before, totals_of(_fetched(url), url), seconds, place)
    files = place.split(",")
    if len(files) != 2:
        raise AdviceError(
            f"--from-metrics {place}: a file has totals and no rate; give a URL, or two readings "
            "as BEFORE,AFTER with --metrics-seconds between them"
        )
    before, after = (totals_of(_read(file), file) for file in files)
    return _load(before, after, seconds, files[1])


def totals_of(text: str, place: str) -> Totals:
    """Add the samples of either server up, over their labels and without their prefix. Raises
    AdviceError for a text without any."""
    found: dict[str, float] = {}
    for line in text.split("\n"):
        prefix = next((each for each in _PREFIXES if line.startswith(each)), None)
        head, _, value = line.rpartition(" ")
        if prefix is None or not head:
            continue
        name = head[len(prefix) :].partition("{")[0]
        try:
            found[name] = found.get(name, 0.0) + float(value)
        except ValueError:
            continue
    if not found:
        raise AdviceError(
            f"--from-metrics {place}: has no metric of this server or of vLLM; give the address of "
            "/metrics"
        )
    return found


def _load(before: Totals, after: Totals, seconds: float, source: str) -> MeasuredLoad:
    requests = _grown(before, after, "request_prompt_tokens_count", source)
    if requests < 1:
        raise AdviceError(
            f"--from-metrics {source}: no request ended between the readings; allow more time "
            "(--metrics-seconds), or give --load"
        )
    answers = _grown(before, after, "request_generation_tokens_sum", source)
    return MeasuredLoad(
        rate=requests / seconds,
        input_tokens=max(
            1, round(_grown(before, after, "request_prompt_tokens_sum", source) / requests)
        ),
        output_tokens=max(1, round(answers / requests)),
        prefix=_cached_share(before, after, source),
        source=source,
        requests=int(requests),
        acceptance=_acceptance(before, after, source),
    )


def _acceptance(before: Totals, after: Totals, source: str) -> float | None:
    """Solve the chance that gives as many accepted tokens of drafts of this mean length."""
    if any(name not in after for name in _DRAFTS):
        return None
    drafts, tokens, accepted = (_grown(before, after, name, source) for name in _DRAFTS)
    if not drafts or not tokens:
        return None
    length, wanted = max(1, round(tokens / drafts)), min(accepted / drafts, tokens / drafts)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        held = sum(middle**count for count in range(1, length + 1))
        low, high = (middle, high) if held < wanted else (low, middle)
    return high


def _cached_share(before: Totals, after: Totals, source: str) -> float:
    for cached, whole in _CACHED:
        if cached in after and whole in after:
            tokens = _grown(before, after, whole, source)
            share = _grown(before, after, cached, source) / tokens if tokens else 0.0
            return min(0.99, share)
    return 0.0


def _grown(before: Totals, after: Totals, name: str, source: str) -> float:
    if name not in after:
        raise AdviceError(f"--from-metrics {source}: lacks {name}; give --load instead")
    grown = after[name] - before.get(name, 0.0)
    if grown < 0 or not math.isfinite(grown):
        raise AdviceError(
            f"--from-metrics {source}: {name} fell between the readings, as a server that began "
            "again; read it again"
        )
    return grown


def _fetched(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:
            body: bytes = response.read(_MOST_BYTES)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise AdviceError(
            f"--from-metrics {url}: cannot be read ({error}); check the address, or save /metrics "
            "to files"
        ) from error
    return body.decode(errors="replace")


def _read(file: str) -> str:
    try:
        with Path(file).open("rb") as opened:
            return opened.read(_MOST_BYTES).decode(errors="replace")
    except (OSError, ValueError) as error:
        raise AdviceError(f"--from-metrics {file}: cannot be read: {error}") from error
