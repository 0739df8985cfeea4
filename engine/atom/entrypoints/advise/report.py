"""The answer as lines, as JSON, and as a page with a chart. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from atom.advisor.extras import Adapters, Drafts
from atom.advisor.manifest import manifest
from atom.advisor.question import Question
from atom.advisor.rates import Evidence
from atom.advisor.rows import Advice, Range, Row
from atom.advisor.slo import PERCENTILES, Metric
from atom.entrypoints.advise.right_size import NOTHING, Beside, cost_of_fewer, fewer_object
from atom.entrypoints.bench.charts.chart import Chart, Series
from atom.entrypoints.bench.charts.svg_chart import svg_chart
from atom.sizing.host_tier import GIB

_HEADER = (
    "form",
    "card",
    "TP",
    "DP",
    "replicas",
    "devices",
    "maxNumSeqs",
    "extras",
    "tiers",
    "goodput/s",
    "TTFT p50/p90/p99 ms",
    "ITL p50/p90/p99 ms",
    "KV",
    "tok/s/device",
    "cost/Mtok",
    "J/tok",
    "evidence",
)


def lines(question: Question, advice: Advice, beside: Beside = NOTHING) -> Iterator[str]:
    """Yield the table, the chosen row, what is to be known of it, and why the others lost."""
    rows = advice.shown
    if rows:
        yield from _table([_HEADER, *[_cells(row) for row in rows]])
        yield ""
    if advice.chosen is not None:
        yield f"chosen: {advice.chosen.label}; its manifest: the same command with -o yaml"
        if question.slo.misses(advice.chosen.slow):
            yield "  at the slow end of its error (±) it misses a target"
        if beside.asks_fewer:
            yield from cost_of_fewer(question, advice.chosen, beside.fewer)
    for row in rows:
        yield f"  {row.label}: {_evidence(row)}"
    for note in advice.notes:
        yield f"note: {note}"
    for lost in advice.lost:
        yield f"not: {lost.label}: {lost.why}"


def _cells(row: Row) -> tuple[str, ...]:
    candidate = row.candidate
    return (
        candidate.model.label,
        candidate.card.name,
        str(candidate.ranks),
        str(row.copies),
        f"{row.prefills}P + {row.pods - row.prefills}D" if row.prefills else str(row.pods),
        str(row.devices),
        str(candidate.max_num_seqs),
        _extras(row),
        _tiers(row),
        _with_ends(row.goodput, 1.0),
        _latencies(row, Metric.TTFT),
        _latencies(row, Metric.ITL),
        f"{row.figures.kv_use[0]:.0%} ≤ {row.figures.kv_use[1]:.0%}",
        f"{row.tokens_per_device:,.0f}",
        "-" if row.million_tokens is None else f"{row.million_tokens:,.3f}",
        "-" if row.joules_per_token is None else f"{row.joules_per_token:,.2f}",
        f"{candidate.rates.evidence.value} ±{candidate.rates.error:.0%}",
    )


def _extras(row: Row) -> str:
    """Return the drafts and the adapters of an engine."""
    form = row.candidate.form
    found = [each.label for each in (form.drafts, form.adapters) if each is not None]
    return ", ".join(found) or "-"


def _tiers(row: Row) -> str:
    """Return the size of each tier, and the share of prompt tokens it had."""
    candidate, reuse = row.candidate, row.figures.reuse
    tiers = [
        (candidate.host_bytes, reuse.from_tier, ""),
        (candidate.form.file_bytes, reuse.from_files, " files"),
    ]
    found = [f"{size / GIB:.4g} GiB{name}, {share:.0%}" for size, share, name in tiers if size]
    return "; ".join(found) or "-"


def _evidence(row: Row) -> str:
    rates = row.candidate.rates
    where = {
        Evidence.MEASURED: f"steps by rates measured on {rates.of}",
        Evidence.TRANSPORTED: f"steps by rates carried over from {rates.of}",
        Evidence.PHYSICS: "steps by peaks and assumed shares of them: nothing of this card is "
        "measured",
    }[rates.evidence]
    learned = row.candidate.learned
    seen = "" if learned is None else f"; {learned}"
    return f"{where}, ±{rates.error:.0%} of a step{seen}"


def _latencies(row: Row, metric: Metric) -> str:
    middle = "/".join(f"{row.metric(metric, each).middle * 1e3:,.0f}" for each in PERCENTILES)
    ends = row.metric(metric, PERCENTILES[1])
    return f"{middle} (p90 {ends.low * 1e3:,.0f}-{ends.high * 1e3:,.0f})"


def _with_ends(found: Range, factor: float) -> str:
    if not found.middle:
        return "0"
    return f"{found.middle * factor:,.3g} ({found.low * factor:,.3g}-{found.high * factor:,.3g})"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()


def as_document(question: Question, advice: Advice, beside: Beside = NOTHING) -> str:
    """Return the whole answer as JSON; times in seconds, rates per second."""
    chosen = None if advice.chosen is None else manifest(advice.chosen)
    nearest = None if advice.nearest is None else _object(advice.nearest)
    document = {
        "slo": str(question.slo),
        "meets": advice.chosen is not None,
        "rows": [_object(row) for row in advice.rows],
        "nearest": nearest,
        "oneFewer": None if beside.fewer is None else fewer_object(question, beside.fewer),
        "lost": [{"form": lost.label, "why": lost.why} for lost in advice.lost],
        "notes": list(advice.notes),
        "manifest": chosen,
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def _object(row: Row) -> dict[str, Any]:
    candidate, figures = row.candidate, row.figures
    return {
        "model": candidate.model.source,
        "quantization": candidate.model.quantization,
        "card": candidate.card.name,
        "tensorParallel": candidate.ranks,
        "dataParallel": row.copies,
        "replicas": row.pods - row.prefills,
        "prefillReplicas": row.prefills,
        "devices": row.devices,
        "maxNumSeqs": candidate.max_num_seqs,
        "maxModelLen": candidate.form.limits.max_model_len,
        "goodput": _ends(row.goodput),
        "latencies": {
            metric.value: {f"p{each:g}": _ends(row.metric(metric, each)) for each in PERCENTILES}
            for metric in Metric
        },
        "kvUse": {"mean": figures.kv_use[0], "most": figures.kv_use[1]},
        "cachedShare": figures.reuse.cached,
        "hostMemoryBytes": candidate.host_bytes,
        "hostTierShare": figures.reuse.from_tier,
        "fileBytes": candidate.form.file_bytes,
        "fileShare": figures.reuse.from_files,
        "speculative": _drafts(candidate.form.drafts),
        "lora": _adapters(candidate.form.adapters),
        "sentShare": figures.reuse.sent,
        "tokensPerDevice": row.tokens_per_device,
        "costPerHour": row.hourly,
        "costPerMillionTokens": row.million_tokens,
        "joulesPerToken": row.joules_per_token,
        "evidence": {
            "kind": candidate.rates.evidence.value,
            "of": candidate.rates.of or None,
            "stepError": candidate.rates.error,
            "requests": figures.requests,
            "learned": None if candidate.learned is None else candidate.learned.factor,
        },
        "misses": {miss.metric.value: miss.seconds for miss in row.misses},
    }


def _drafts(drafts: Drafts | None) -> dict[str, Any] | None:
    if drafts is None:
        return None
    return {
        "method": drafts.method,
        "tokens": drafts.tokens,
        "acceptance": drafts.acceptance,
        "tokensAStep": drafts.tokens_a_step,
    }


def _adapters(adapters: Adapters | None) -> dict[str, int] | None:
    if adapters is None:
        return None
    return {"adapters": adapters.count, "rank": adapters.rank, "maxLoras": adapters.slots}


def _ends(found: Range) -> dict[str, float]:
    return {"low": found.low, "middle": found.middle, "high": found.high}


def html_page(question: Question, advice: Advice, beside: Beside = NOTHING) -> str:
    """Return a page that loads nothing: the table, a chart, and the reasons."""
    rows = advice.shown
    title = f"{question.load.rate:g} requests/s within {question.slo}"
    head = "".join(f"<th>{escape(name)}</th>" for name in _HEADER)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(row))}</tr>" for row in rows
    )
    items: list[str] = []
    if advice.chosen is not None and beside.asks_fewer:
        items += cost_of_fewer(question, advice.chosen, beside.fewer)
    items += [f"note: {note}" for note in advice.notes]
    items += [f"not: {lost.label}: {lost.why}" for lost in advice.lost]
    listed = "".join(f"<li>{escape(item)}</li>" for item in items)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        "<style>body{font:14px system-ui,sans-serif;margin:2em}td,th{padding:.2em .6em;"
        "text-align:left;border-bottom:1px solid #8884}</style>"
        f"<h1>{escape(title)}</h1><table><tr>{head}</tr>{body}</table>"
        f"{_chart(advice, beside)}<ul>{listed}</ul></html>\n"
    )


def _chart(advice: Advice, beside: Beside) -> str:
    """Draw the goodput over the rate of requests: predicted, and measured."""
    series = tuple(Series(row.label, row.curve) for row in advice.shown if row.curve)
    if beside.fewer is not None and beside.fewer.curve:
        series += (Series(f"one device fewer: {beside.fewer.label}", beside.fewer.curve),)
    if beside.measured is not None:
        series = (beside.measured, *series)
    if not series:
        return ""
    most = max(rate for line in series for rate, _ in line.points)
    ideal = Series("all requests", ((0.0, 0.0), (most, most)), is_reference=True)
    chart = Chart(
        "Goodput by rate", "requests per second", "requests per second in time", (*series, ideal)
    )
    return svg_chart(chart)
