"""Reads the metrics of an engine: Prometheus' text format, in time that is linear in its length.

A pod may answer with any text, so nothing here looks at a line twice. A number that is none, is
negative or has no end makes that group of figures unknown, and no other one. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from atom_operator.domain import (
    Buckets,
    DraftCounts,
    EngineLoad,
    EngineMetrics,
    EngineOutlook,
    RequestCounts,
    SleepCounts,
)

_PREFIX = "atom:"
_MOST_COUNTED = 2**63 - 1
_MOST_SAMPLES = 20_000  # of ours; an engine has a few hundred
_DRAFTS = "spec_decode_num_{}_total"
_FINISHED = "requests_finished_total"
_FIRST_TOKENS = "time_to_first_token_seconds"
_NEXT_TOKENS = "inter_token_latency_seconds"
_HISTOGRAMS = {f"{name}_bucket": name for name in (_FIRST_TOKENS, _NEXT_TOKENS)}
_LIMIT = "predicted_ttft_limit"
_CLIENT_LEFT, _FAILED = "abort", "error"  # of finish reasons


class UnreadableError(ValueError):
    """Report an implausible value in an engine's answer."""


def parse_metrics(body: bytes) -> EngineMetrics:
    """Parse a /metrics body; each group is None if a part of it is missing or unreadable."""
    try:
        found = _Samples(body.decode())
    except UnicodeDecodeError:
        return EngineMetrics()
    return EngineMetrics(
        _drafts(found), _load(found), _requests(found), _sleep(found), _outlook(found)
    )


class _Samples:
    """Sum the samples of our names over label sets, and keep single labels that matter."""

    def __init__(self, text: str) -> None:
        self._values: dict[str, float] = {}
        self.finished: dict[str, float] = {}
        self.block_size: str | None = None
        self.limit = ""
        self.buckets: dict[str, dict[float, float]] = {}
        for number, (name, labels, value) in enumerate(_samples(text)):
            if number >= _MOST_SAMPLES:
                break
            self._values[name] = self._values.get(name, 0.0) + value
            if name == _FINISHED:
                reason = _label(labels, "finished_reason")
                self.finished[reason] = self.finished.get(reason, 0.0) + value
            elif name in _HISTOGRAMS:
                self._add_bucket(_HISTOGRAMS[name], _label(labels, "le"), value)
            elif name == _LIMIT and value == 1:
                self.limit = _label(labels, "resource")
            elif name == "cache_config_info" and self.block_size is None:
                self.block_size = _label(labels, "block_size")

    def _add_bucket(self, name: str, bound: str, value: float) -> None:
        try:
            limit = float(bound)
        except ValueError:
            return
        found = self.buckets.setdefault(name, {})
        if not math.isnan(limit):
            found[limit] = found.get(limit, 0.0) + value

    def histogram(self, name: str) -> Buckets:
        """Return the buckets by rising bounds; empty for one that no engine would report."""
        found = tuple(sorted(self.buckets.get(name, {}).items()))
        counts = [count for _, count in found]
        sound = bool(found) and math.isinf(found[-1][0]) and counts == sorted(counts)
        finite = all(math.isfinite(count) and count >= 0 for count in counts)
        return found if sound and finite else ()

    def number(self, name: str) -> float:
        """Raises UnreadableError for one that is missing, negative or not finite."""
        value = self._values.get(name, math.nan)
        if not math.isfinite(value) or value < 0:
            raise UnreadableError(f"{_PREFIX}{name} is {value}")
        return value

    def count(self, name: str) -> int:
        """Raises UnreadableError."""
        return min(int(self.number(name)), _MOST_COUNTED)

    def has(self, name: str) -> bool:
        return name in self._values


def _samples(text: str) -> Iterator[tuple[str, str, float]]:
    """Yield name, labels and value of the lines that are ours."""
    for line in text.split("\n"):
        if not line.startswith(_PREFIX):
            continue
        head, _, value = line.rpartition(" ")
        name, brace, labels = head[len(_PREFIX) :].partition("{")
        if brace and not labels.endswith("}"):
            continue  # with a time after the value, which engines do not write, or torn
        try:
            yield name.strip(), labels[:-1], float(value)
        except ValueError:
            continue


def _label(labels: str, name: str) -> str:
    """Return a label's value; empty if it is missing."""
    _, found, rest = f",{labels}".partition(f',{name}="')
    return rest.partition('"')[0] if found else ""


def _drafts(found: _Samples) -> DraftCounts | None:
    names = ("drafts", "draft_tokens", "accepted_tokens")
    try:
        drafts, tokens, accepted = (found.count(_DRAFTS.format(name)) for name in names)
    except UnreadableError:
        return None
    return DraftCounts(drafts, tokens, accepted)


def _load(found: _Samples) -> EngineLoad | None:
    size = found.block_size or ""
    if not (size.isascii() and size.isdigit() and len(size) <= 6):
        return None
    try:
        requests = found.count("requests_running") + found.count("requests_waiting")
        return EngineLoad(requests, found.count("kv_cache_blocks_indexed") * int(size))
    except UnreadableError:
        return None


def _requests(found: _Samples) -> RequestCounts | None:
    """Read the counts of ended requests; None if the engine does not report them."""
    if not found.finished and not found.has(f"{_FIRST_TOKENS}_count"):
        return None
    ended = found.finished
    if not all(math.isfinite(value) and value >= 0 for value in ended.values()):
        return None
    try:
        has_tokens = found.has(f"{_FIRST_TOKENS}_count")
        tokens = found.count(f"{_FIRST_TOKENS}_count") if has_tokens else 0
        seconds = found.number(f"{_FIRST_TOKENS}_sum") if has_tokens else 0.0
    except UnreadableError:
        return None
    whole = sum(value for reason, value in ended.items() if reason != _CLIENT_LEFT)
    if not ended and not tokens:
        return None
    finished, failed = (min(int(each), _MOST_COUNTED) for each in (whole, ended.get(_FAILED, 0.0)))
    return RequestCounts(finished, failed, tokens, seconds)


def _outlook(found: _Samples) -> EngineOutlook | None:
    """Read the engine's predictions; None of one that does not predict."""
    try:
        ttft, itl = (found.number(f"predicted_{name}_seconds") for name in ("ttft", "itl"))
        has_ratio = found.has("step_seconds_ratio")
        ratio = found.number("step_seconds_ratio") if has_ratio else None
    except UnreadableError:
        return None
    return EngineOutlook(
        ttft_seconds=ttft,
        itl_seconds=itl,
        limit=found.limit,
        steps_ratio=ratio,
        ttft=found.histogram(_FIRST_TOKENS),
        itl=found.histogram(_NEXT_TOKENS),
    )


def _sleep(found: _Samples) -> SleepCounts | None:
    """Read how the engine sleeps; None of one that does not when it is idle."""
    try:
        return SleepCounts(int(found.number("sleeping") > 0), found.count("model_wakes_total"))
    except UnreadableError:
        return None
